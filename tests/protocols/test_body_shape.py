from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols import body_shape
from dynamo.protocols.body_shape import BodyLimits, check_shape
from dynamo.protocols.errors import InvalidRequest

LARGE = 40_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab",:[{\\\n\u00e9', max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text('k",:[{\\', max_size=4), inner, max_size=6),
    max_leaves=40,
)


def refusal(body: bytes, limits: BodyLimits) -> str:
    with pytest.raises(InvalidRequest) as caught:
        list(check_shape(body, limits))
    assert (caught.value.status, caught.value.code) == (400, "body_too_complex")
    return str(caught.value)


def count(value: Any) -> tuple[int, int]:
    """The commas between values, and the fields, lists and objects."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [count(each) for each in (value.values() if isinstance(value, dict) else value)]
    fields = 1 + (len(value) if isinstance(value, dict) else 0)
    return max(0, len(value) - 1) + sum(items for items, _ in inner), fields + sum(each for _, each in inner)


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 17])
@given(value=VALUES, escaped=st.booleans())
def test_what_stands_outside_of_strings_is_counted_exactly(step: int, value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_shape, "_STEP", step)
        outside = b"".join(piece for piece, _ in body_shape._outside_strings(body))
    items, fields = count(value)
    assert outside.count(b",") == items
    assert sum(outside.count(mark) for mark in (b"[", b"{", b":")) == fields


@pytest.mark.parametrize(
    ("repeated", "named"),
    [
        (b"1,", "values in lists"),
        (b"[1],", "fields, lists and objects"),
        (b"{},", "fields, lists and objects"),
        (b'{"a":1},', "fields, lists and objects"),
        (b'"a",' * 10, "strings"),
        (b"1.5e300,", "numbers with large exponents"),
        (b"1e-300,", "numbers with large exponents"),
        (b"0.%s," % (b"3" * 40), "numbers with large exponents"),
    ],
)
def test_a_body_of_too_many_values_is_refused(repeated: bytes, named: str) -> None:
    body = b'{"a":[' + repeated * LARGE + b"0]}"
    assert named in refusal(body, BodyLimits(items=LARGE - 1 if repeated == b"1," else 0, fields=LARGE - 1))


def test_text_that_decodes_slowly_is_bounded() -> None:
    assert "escapes" in refusal(b'{"a":"' + b"\\n" * (9 << 20) + b'"}', BodyLimits())


@pytest.mark.parametrize(
    "text",
    [
        b"a" * (20 << 20),
        b"," * 200_000,
        b"[{:," * 100_000,
        b'{\\"a\\": [1, 2, {\\"b\\": 1e300}]}' * 5_000,
        b"\\\\" * 100_000,
    ],
    ids=("plain", "commas", "marks", "JSON in a string", "backslashes"),
)
def test_a_long_string_counts_as_one_value_whatever_it_contains(text: bytes) -> None:
    body = b'{"a":"' + text + b'","b":[1,2]}'
    assert msgspec.json.decode(body)["b"] == [1, 2]
    list(check_shape(body, BodyLimits(items=2, fields=4)))


def test_zero_is_no_limit() -> None:
    list(check_shape(b"[" + b"[1]," * LARGE + b"1]", BodyLimits(0, 0)))


@given(st.binary(max_size=300))
def test_bytes_that_are_not_json_are_left_to_the_decoder(noise: bytes) -> None:
    for _ in body_shape._outside_strings(noise * 9):
        pass
