"""Decodes streams of token ids into text, also where a character is split over several tokens.

Byte-level vocabularies (GPT-2's scheme: Llama 3, Qwen, DeepSeek …) are decoded by table: nearly every id stands for
whole characters, so its text is looked up, and only the rest goes through bytes. All others use `DecodeStream`.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import tokenizers
from msgspec import Struct
from tokenizers.decoders import DecodeStream

_REPLACEMENT = "\ufffd"
_CONTEXT = 8
# A character takes at most four byte tokens; if more are pending, the bytes will never become one.
_MAX_PENDING = 8


class UnknownToken(Exception):
    """The model cannot have produced this id."""

    def __init__(self, id: int, limit: int) -> None:
        super().__init__(f"token id {id}, outside the model's vocabulary of {limit}")


class Decoder(Protocol):
    """Decodes one stream of ids. Each call returns the text that is certain, which may be empty.

    Both kinds of `push` raise `UnknownToken`. Ids that only pad the model's vocabulary have no text.
    """

    def push(self, ids: Sequence[int]) -> str: ...

    def push_escaped(self, ids: Sequence[int]) -> str:
        """As `push`, but escaped for a JSON string."""

    def flush(self) -> str:
        """The rest at the end of the stream: an incomplete character, as U+FFFD."""


def json_escaped(text: str) -> str:
    """Text escaped for a JSON string, without the quotes."""
    return msgspec.json.encode(text)[1:-1].decode()


def json_unescaped(text: str) -> str:
    """The inverse of `json_escaped`."""
    return msgspec.json.decode(f'"{text}"', type=str)


class ByteTables(Struct, frozen=True):
    """Bytes and text of the ids of a byte-level vocabulary; ids of partial characters are only in `pieces`."""

    pieces: dict[int, bytes]
    text: dict[int, str]
    escaped: dict[int, str]
    limit: int
    """Less than this are the ids that the model can produce, those that pad its vocabulary included."""

    @classmethod
    def build(cls, pieces: dict[int, bytes], limit: int) -> ByteTables:
        text: dict[int, str] = {}
        escaped: dict[int, str] = {}
        for id, piece in pieces.items():
            try:
                text[id] = piece.decode()
            except UnicodeDecodeError:
                continue
            escaped[id] = json_escaped(text[id])
        return cls(pieces, text, escaped, limit)

    def without(self, special: frozenset[int]) -> ByteTables:
        """The same tables with empty text for these ids."""
        return ByteTables(
            self.pieces | dict.fromkeys(special, b""),
            self.text | dict.fromkeys(special, ""),
            self.escaped | dict.fromkeys(special, ""),
            self.limit,
        )


class ByteDecoder:
    """Gives exactly the text of `decode` for a byte-level vocabulary."""

    __slots__ = ("_carry", "_escaped", "_limit", "_pieces", "_text")

    def __init__(self, tables: ByteTables) -> None:
        self._text = tables.text
        self._escaped = tables.escaped
        self._pieces = tables.pieces
        self._limit = tables.limit
        self._carry = b""

    def push(self, ids: Sequence[int]) -> str:
        if not self._carry:
            try:
                if len(ids) == 1:
                    return self._text[ids[0]]
                return "".join(map(self._text.__getitem__, ids))
            except KeyError:
                pass
        return self._through_bytes(ids)

    def push_escaped(self, ids: Sequence[int]) -> str:
        if not self._carry:
            try:
                if len(ids) == 1:
                    return self._escaped[ids[0]]
                return "".join(map(self._escaped.__getitem__, ids))
            except KeyError:
                pass
        text = self._through_bytes(ids)
        return json_escaped(text) if text else text

    def flush(self) -> str:
        rest, self._carry = self._carry, b""
        return rest.decode(errors="replace")

    def _through_bytes(self, ids: Sequence[int]) -> str:
        data = self._carry + b"".join(map(self._piece, ids))
        text, used = utf_8_decode(data, "replace", False)
        self._carry = data[used:]
        return text

    def _piece(self, id: int) -> bytes:
        piece = self._pieces.get(id)
        if piece is None and not 0 <= id < self._limit:
            raise UnknownToken(id, self._limit)
        return piece or b""


class StreamDecoder:
    """Decodes any other vocabulary with `DecodeStream`, which is given the end of the prompt as context.

    Without that context the first word would lose its leading space, as if it were the start of the text.
    """

    __slots__ = ("_context", "_hidden", "_limit", "_pending", "_skip", "_stream", "_tokenizer")

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        prompt_ids: Sequence[int],
        skip_special: bool,
        special: frozenset[int],
        limit: int,
    ) -> None:
        """`limit` as in `ByteTables`."""
        self._tokenizer = tokenizer
        self._limit = limit
        self._skip = skip_special
        self._hidden = special if skip_special else frozenset[int]()
        self._context = self._usable([id for id in prompt_ids[-4 * _CONTEXT :] if id not in self._hidden][-_CONTEXT:])
        self._stream = DecodeStream(self._context, skip_special)
        self._pending: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        return "".join([self._step(id) for id in ids if self._shown(id)])

    def push_escaped(self, ids: Sequence[int]) -> str:
        return json_escaped(self.push(ids))

    def flush(self) -> str:
        if not self._pending:
            return ""
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)
        # A run of byte tokens can change the text before it: then the pending ids are decoded on their own.
        text = text[len(before) :] if text.startswith(before) else self._decode(self._pending)
        self._pending = []
        self._context = self._usable(self._context)
        self._stream = DecodeStream(self._context, self._skip)
        return text

    def _step(self, id: int) -> str:
        self._pending.append(id)
        try:
            text = self._stream.step(self._tokenizer, id)
        except Exception:  # the library raises a bare Exception where the new text no longer starts with the old
            return self.flush()
        if text is None:
            return self.flush() if len(self._pending) > _MAX_PENDING else ""
        self._context = (self._context + self._pending)[-_CONTEXT:]
        self._pending = []
        return text

    def _shown(self, id: int) -> bool:
        if not 0 <= id < self._limit:
            raise UnknownToken(id, self._limit)
        return id not in self._hidden

    def _usable(self, ids: list[int]) -> list[int]:
        """Cut ids off until the context ends with a whole character: the stream would repeat a partial one."""
        while ids and self._decode(ids).endswith(_REPLACEMENT):
            ids = ids[:-1]
        return ids

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


def byte_pieces(tokens: Mapping[int, str]) -> dict[int, bytes]:
    """The bytes of each token: one per character, or for a token that is not byte-level, its UTF-8 encoding."""
    # Latin-1 characters that stand for no byte are moved out of Latin-1, so that encoding such a token fails.
    table = dict.fromkeys(range(256), "\uffff")
    table |= {ord(character): chr(byte) for byte, character in enumerate(byte_characters())}
    pieces: dict[int, bytes] = {}
    for id, token in tokens.items():
        try:
            pieces[id] = token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            pieces[id] = token.encode()
    return pieces


def byte_characters() -> str:
    """GPT-2's printable characters for the 256 bytes: printable bytes map to themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(spare)) for byte in range(256))
