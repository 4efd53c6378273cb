"""Passes token ids through mistral.rs's text-only API.

mistral.rs takes a prompt as text and reports only the bytes of a sampled token. So we give it a tokenizer of our own
with the model's tokens. A prompt is the texts of its tokens with a separator between them, so that each text becomes
exactly one token, whatever its neighbours are. No token is "special", because mistral.rs does not report special ones.
Thus ids are preserved both ways, even those of partial characters and of special tokens. Text without separators is
split nearly as by the model's own tokenizer: that is how grammars tokenize the text they force.

Only the tokens that end an answer stay special, and so are not reported: grammars must recognise them as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from dynamo.model import Tokenizer
from dynamo.model.detokenize import byte_characters
from dynamo.protocols.errors import InvalidArgument

_GRAMMAR_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>")
"""The names by which mistral.rs's grammar library recognises the token that ends an answer."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRIVATE_USE = re.compile("[\ue000-\uf8ff]")

_BYTE_CHARACTERS = byte_characters()
_BYTES = {ord(character): chr(byte) for byte, character in enumerate(_BYTE_CHARACTERS)}
# The byte 0xFE occurs in no UTF-8 text, so a name that begins with it cannot collide with a token of the model.
_NO_TEXT = _BYTE_CHARACTERS[0xFE]

# Bytes of partial characters are written as these characters of three bytes each, which the tokenizer's normalizer
# turns back. The first 64 end in the very byte they stand for, so the normalizer needs only one rule for all of them.
_SEPARATOR = "\ue000"
_LOOSE = {byte: chr(0xE100 + byte - 0x80) for byte in range(0x80, 0x100)}


class Vocabulary:
    """A model's tokens, as the tokenizer that mistral.rs is given.

    A GGUF file's tokens must keep their names (`rename=False`), because mistral.rs compares them. Then a token whose
    name has no bytes of its own is not reported, and grammars work only if the model has an end token they recognise.
    """

    def __init__(self, tokenizer: Tokenizer, end: int | None, *, rename: bool) -> None:
        self._merges = _merges(tokenizer)
        names = dict(tokenizer.tokens)
        self._scheme: ByteLevel | SentencePiece = ByteLevel() if tokenizer.is_byte_level else SentencePiece(names)
        self.end = end if end in names else None
        if rename:
            self._rename(names)
        self._names = names
        self.ends: dict[int, str] = {} if self.end is None else {self.end: names[self.end]}
        """Names of the tokens that end an answer in mistral.rs, by id."""
        self.grammar_end = next((name for name in self.ends.values() if name in _GRAMMAR_ENDS), None)
        if self.grammar_end is None:
            ids = {name: id for id, name in names.items()}
            self.grammar_end = next((name for name in _GRAMMAR_ENDS if name in ids), None)
            if self.grammar_end is not None:
                self.ends[ids[self.grammar_end]] = self.grammar_end
        self.markers = sorted(tokenizer.special_ids.difference(self.ends))
        """Special tokens, which must not match as text in a grammar."""
        self._special = dict(self.ends)
        self._texts: dict[int, str] = {}
        self._ids: dict[bytes, int] = {}
        self._index()

    def prompt(self, ids: Iterable[int]) -> str:
        """The text that is tokenized as exactly these ids."""
        texts = self._texts
        try:
            return self._scheme.separator.join([texts[id] for id in ids])
        except KeyError as error:
            raise InvalidArgument(f"token id {error} is not in the model's vocabulary") from None

    def id_of(self, piece: bytes) -> int | None:
        """The token that mistral.rs reports as these bytes."""
        return self._ids.get(piece)

    def tokenizer_json(self) -> bytes:
        names = {name: id for id, name in self._names.items()}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return msgspec.json.encode(
            {
                "version": "1.0",
                "added_tokens": [{"id": id, "content": name} | flags for id, name in sorted(self._special.items())],
                "normalizer": {"type": "Sequence", "normalizers": self._scheme.normalizers},
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"String": self._scheme.normalized_separator},
                    "behavior": "Removed",
                    "invert": False,
                },
                "decoder": self._scheme.decoder,
                "model": {
                    "type": "BPE",
                    "vocab": names,
                    "merges": [pair for pair in self._merges if {*pair, "".join(pair)} <= names.keys()],
                    "ignore_merges": True,
                    "byte_fallback": self._scheme.byte_fallback,
                },
            }
        )

    def _rename(self, names: dict[int, str]) -> None:
        """Give the end token a name that grammars recognise, and new names to tokens that would not be reported."""
        end_name = _GRAMMAR_ENDS[0]
        for id in range(max(names, default=-1) + 1):
            name = names.get(id)
            if id == self.end:
                names[id] = end_name
            elif name is None or end_name in name or not _is_reported(self._scheme.piece(name)):
                names[id] = f"{self._scheme.mark}{id}"

    def _index(self) -> None:
        scheme = self._scheme
        for id, name in self._names.items():
            piece = scheme.piece(name)
            if piece is None:
                self._special[id] = name
            if piece is None or id in self.ends:
                self._texts[id] = name
                continue
            self._texts[id] = scheme.text(name, piece)
            # A byte token may have the same bytes as the character's own token, which is the one models use.
            if _is_reported(piece) and (piece not in self._ids or not _BYTE_TOKEN.fullmatch(name)):
                self._ids[piece] = id


class ByteLevel:
    """GPT-2's scheme: a token's name has one character for each byte."""

    separator = _SEPARATOR
    normalized_separator = "".join(_BYTE_CHARACTERS[byte] for byte in _SEPARATOR.encode())
    mark = _NO_TEXT
    byte_fallback = False

    @property
    def normalizers(self) -> list[dict[str, Any]]:
        loose = {byte: "".join(_BYTE_CHARACTERS[part] for part in text.encode()) for byte, text in _LOOSE.items()}
        return [
            {"type": "ByteLevel"},
            *(_replace(loose[byte], _BYTE_CHARACTERS[byte]) for byte in range(0xC0, 0x100)),
            _replace(loose[0x80][:2], ""),
        ]

    @property
    def decoder(self) -> dict[str, Any]:
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def piece(self, name: str) -> bytes | None:
        """The bytes that mistral.rs reports for a token of this name; None if it reports none."""
        return name.translate(_BYTES).encode("latin-1") if name and name.strip(_BYTE_CHARACTERS) == "" else None

    def text(self, name: str, piece: bytes) -> str:
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            text = _SEPARATOR
        if _PRIVATE_USE.search(text):
            return "".join(_LOOSE.get(byte) or chr(byte) for byte in piece)
        return text


class SentencePiece:
    """Llama 2's scheme: a token's name is its text, with `▁` for a space, or one byte as `<0x0A>`."""

    byte_fallback = True

    def __init__(self, names: dict[int, str]) -> None:
        used = set().union(*names.values())
        free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used)
        self.separator = self.normalized_separator = next(free)
        self.mark = next(free)

    @property
    def normalizers(self) -> list[dict[str, Any]]:
        return [_replace(" ", "▁")]

    @property
    def decoder(self) -> dict[str, Any]:
        return {"type": "Sequence", "decoders": [_replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]}

    def piece(self, name: str) -> bytes | None:
        if byte := _BYTE_TOKEN.fullmatch(name):
            return bytes.fromhex(byte[1])
        return None if not name or " " in name or name.startswith("<0x") else name.replace("▁", " ").encode()

    def text(self, name: str, piece: bytes) -> str:
        return name


def _is_reported(piece: bytes | None) -> bool:
    """The library marks special tokens with a leading 0xFF."""
    return piece is not None and not piece.startswith(b"\xff")


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


class _Merging(msgspec.Struct):
    merges: list[tuple[str, str] | str] = []


class _Parsed(msgspec.Struct):
    model: _Merging


def _merges(tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    merges = msgspec.json.decode(tokenizer.to_json(), type=_Parsed).model.merges
    return [tuple(merge.split(" ")) if isinstance(merge, str) else merge for merge in merges]
