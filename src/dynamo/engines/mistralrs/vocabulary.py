"""Token ids through a text-only API.

mistral.rs takes a prompt as text and says of a sampled token only its bytes. So it is given a tokenizer of our making:
the model's own tokens, but a prompt is their names with a separator between, each of which is one token whatever its
neighbours are; and no token is "special", as it would leave those out of what it reports. Ids survive both ways, also
those of half a character and of special tokens.

Only the ends of an answer stay special, hence unreported: its grammars must know them as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dynamo.model import Tokenizer
from dynamo.model.detokenize import byte_characters
from dynamo.protocols.errors import InvalidArgument

_GRAMMAR_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>")
"""The names by which the grammar library of mistral.rs knows the token that ends an answer."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRIVATE_USE = range(0xE000, 0xF900)
# 0xFE is no byte of any text, so a token of this name is none of the vocabulary's others.
_NO_TEXT = byte_characters()[0xFE]


class Vocabulary:
    """The names of a model's tokens in the tokenizer that mistral.rs is given.

    A GGUF file's tokens must keep their names (`rename=False`): mistral.rs compares. Then a token whose name has no
    bytes of its own stays unreported, and grammars need the model to have one of the ends they know.
    """

    def __init__(self, tokenizer: Tokenizer, end: int | None, *, rename: bool) -> None:
        self._byte_level = tokenizer.is_byte_level
        names = dict(tokenizer.tokens)
        used = set().union(*names.values())
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        self._separator = next(free)
        if end not in names:
            end = None
        if rename:
            self._rename(names, end, _NO_TEXT if self._byte_level else next(free))
        self._names = names
        self.end = end
        self.ends: dict[int, str] = {} if end is None else {end: names[end]}
        self.grammar_end = next((name for name in self.ends.values() if name in _GRAMMAR_ENDS), None)
        if self.grammar_end is None:
            ids = {name: id for id, name in names.items()}
            self.grammar_end = next((name for name in _GRAMMAR_ENDS if name in ids), None)
            if self.grammar_end is not None:
                self.ends[ids[self.grammar_end]] = self.grammar_end
        self._ids = self._by_bytes()
        self.marks = sorted(tokenizer.special_ids.difference(self.ends))
        """Special tokens, which no grammar should take for text."""

    def prompt(self, ids: Iterable[int]) -> str:
        """The text that becomes these very ids."""
        names = self._names
        try:
            return self._separator.join([names[id] for id in ids])
        except KeyError as error:
            raise InvalidArgument(f"token id {error} is not in the model's vocabulary") from None

    def id_of(self, piece: bytes) -> int | None:
        """The token that a report of these bytes means."""
        return self._ids.get(piece)

    def tokenizer_json(self) -> bytes:
        added = [
            {"id": id, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
            for id, name in sorted(self.ends.items())
        ]  # fmt: skip
        model = {"type": "BPE", "vocab": {name: id for id, name in self._names.items()}, "merges": []}
        options = {"ignore_merges": True, "byte_fallback": not self._byte_level, "fuse_unk": False}
        return msgspec.json.encode(
            {
                "version": "1.0",
                "added_tokens": added,
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "Split", "pattern": {"String": self._separator}, "behavior": "Removed", "invert": False
                },
                "post_processor": None,
                "decoder": _BYTE_LEVEL if self._byte_level else _BYTE_FALLBACK,
                "model": model | options,
            }
        )  # fmt: skip

    def _rename(self, names: dict[int, str], end: int | None, mark: str) -> None:
        """Give the end a name grammars know, and one of its own to each token that would not be reported."""
        end_name = _GRAMMAR_ENDS[0]
        for id in range(max(names, default=-1) + 1):
            name = names.get(id)
            if id == end:
                names[id] = end_name
            elif name is None or end_name in name or self._piece(name) is None:
                names[id] = f"{mark}{id}"

    def _by_bytes(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for id, name in self._names.items():
            piece = self._piece(name)
            # A byte token has a twin in the character's own token, which is the one models use.
            if id not in self.ends and piece is not None and (piece not in found or not self._is_byte(name)):
                found[piece] = id
        return found

    def _is_byte(self, name: str) -> bool:
        return not self._byte_level and _BYTE_TOKEN.fullmatch(name) is not None

    def _piece(self, name: str) -> bytes | None:
        """The bytes mistral.rs reports for a token of this name, if it does."""
        if not name:
            return None
        if self._byte_level:
            return name.translate(_BYTES).encode("latin-1") if _STAND_INS.issuperset(name) else None
        if byte := _BYTE_TOKEN.fullmatch(name):
            return bytes.fromhex(byte[1])
        return None if name.startswith("<0x") else name.replace("▁", " ").encode()


_STAND_INS = frozenset(byte_characters())
_BYTES = {ord(character): chr(byte) for byte, character in enumerate(byte_characters())}
_BYTE_LEVEL: Mapping[str, Any] = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False
}  # fmt: skip
_BYTE_FALLBACK: Mapping[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
