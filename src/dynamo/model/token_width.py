"""How many characters of a text one token can stand for: the fewest tokens of a text follow without encoding it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.model.detokenize import byte_characters

_NFC_CHARACTERS = 4
"""Characters that Unicode's composition can join into one."""


class _TokenizerModel(Struct):
    type: str | None = None
    byte_fallback: bool = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None


class _AddedToken(Struct):
    lstrip: bool = False
    rstrip: bool = False


class _Parts(Struct):
    model: _TokenizerModel
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[_AddedToken] = []


# Made here and not on first use: msgspec crashes when two threads, each loading a model, prepare one type at once.
_PARTS = msgspec.json.Decoder(_Parts)


def characters_per_token(json: str, tokens: Collection[str]) -> int | None:
    """The most characters of text per token; None where no such bound is known to hold, as characters may be dropped.

    `json` is a tokenizer.json and `tokens` its vocabulary with the added tokens.
    """
    parts = _PARTS.decode(json)
    model, steps = parts.model, _flat(parts.pre_tokenizer, "pretokenizers")
    if model.type != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    if any(token.lstrip or token.rstrip for token in parts.added_tokens):
        return None
    if not all(map(_keeps_all, steps)):
        return None
    joined = 1
    for step in _flat(parts.normalizer, "normalizers"):
        if step.get("type") == "NFC":
            joined = _NFC_CHARACTERS
        elif not _keeps_length(step):
            return None
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    if not is_byte_level and not model.byte_fallback:
        return None
    # A character for which the vocabulary has nothing would be dropped, or many of them joined into one token.
    needed = byte_characters() if is_byte_level else (f"<0x{byte:02X}>" for byte in range(256))
    if not all(each in tokens for each in needed):
        return None
    return joined * max(map(len, tokens))


def _flat(step: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [each for member in step.get(members, ()) for each in _flat(member, members)]


def _keeps_all(step: dict[str, Any]) -> bool:
    """The pre-tokenizer cuts text without dropping any of it."""
    return step.get("type") in ("ByteLevel", "Split", "Digits", "Metaspace") and step.get("behavior") != "Removed"


def _keeps_length(step: dict[str, Any]) -> bool:
    """The normalizer leaves at least as many characters as there were."""
    if step.get("type") == "Prepend":
        return True
    pattern, content = step.get("pattern"), step.get("content")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    return (
        step.get("type") == "Replace"
        and isinstance(replaced, str)
        and isinstance(content, str)
        and len(content) >= len(replaced) > 0
    )
