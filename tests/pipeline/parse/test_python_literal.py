from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.pipeline.parse.python_literal import literal_to_json

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(LITERALS)
def test_a_literal_means_the_same_in_json(value: object) -> None:
    assert json.loads(literal_to_json(repr(value))) == ast.literal_eval(repr(value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0x10", "16"),
        ("1_000", "1000"),
        ("+5", "5"),
        (".5", "0.5"),
        ("(1, 'a',)", '[1, "a"]'),
        ("{1: 'a', True: 2}", '{"1": "a", "true": 2}'),
        (r"'\x41\101\d\'\U0001f989'", '"AA\\\\d\'🦉"'),
        (r"'\ud83e\udd89'", '"\\ud83e\\udd89"'),
        ("true", "true"),
    ],
)
def test_python_spellings_are_translated_to_json(text: str, expected: str) -> None:
    assert literal_to_json(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "f(1)",
        "1 2",
        "'a' 'b'",
        "{1, 2}",
        "[1",
        "1]",
        "[1 2]",
        "{'a'}",
        "'a",
        "1e999x",
        "-'a'",
        r"'\Uffffffff'",
    ],
)
def test_anything_but_a_literal_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        literal_to_json(text)
