from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.model.tokenizer import Tokenizer
from support import models

BYTE_LEVEL = Tokenizer(models.byte_level_json())
SENTENCEPIECE = Tokenizer(models.sentencepiece_json())
NFC = {"type": "NFC"}
PIECES = (
    "the ",
    " " * 40,
    "quick",
    "\n\n",
    "é",
    "e\u0301",
    "\u1100\u1161\u11a8",
    "👩‍👧",
    "<|im_end|>",
    "\0",
    "\ud83d\ude00",
    "x" * 50,
    "1",
)


def changed(**parts: Any) -> Tokenizer:
    return Tokenizer(json.dumps(json.loads(models.byte_level_json()) | parts))


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE, changed(normalizer=NFC)], ids=("bytes", "▁", "NFC"))
@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=40).map("".join))
def test_no_text_has_fewer_tokens_than_are_foreseen(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.characters_per_token is not None
    count = len(tokenizer.encode(text))
    assert tokenizer.fewest_tokens(text) <= count
    assert not tokenizer.exceeds(text, count)


def test_a_text_far_beyond_a_limit_is_known_to_exceed_it() -> None:
    assert BYTE_LEVEL.exceeds(" " * 1_000_000, 2048)
    assert SENTENCEPIECE.exceeds("x" * 1_000_000, 2048)


def added(**options: bool) -> list[dict[str, Any]]:
    first, *others = json.loads(models.byte_level_json())["added_tokens"]
    return [first | options, *others]


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"added_tokens": added(rstrip=True)},
        {"added_tokens": added(lstrip=True)},
    ],
    ids=("strip", "shorter", "regex", "dropped", "rstrip", "lstrip"),
)
def test_nothing_is_foreseen_where_characters_may_be_dropped(parts: dict[str, Any]) -> None:
    tokenizer = changed(**parts)
    assert tokenizer.characters_per_token is None
    assert not tokenizer.exceeds(" " * 100_000, 1)
