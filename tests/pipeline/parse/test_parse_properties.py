from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.pipeline.parse import tool_formats
from pipeline.parse.outputs import SCHEMAS, THOUGHTS, TWO_CALLS, Seen, cut, parse

COMBINATIONS = [
    *((tools, None) for tools in TWO_CALLS),
    *((None, reasoning) for reasoning in THOUGHTS),
    ("hermes", "basic"),
    ("qwen3_coder", "deepseek_r1"),
    ("pythonic", "granite"),
    ("llama3_json", "kimi"),
    ("mistral", "mistral"),
    ("hermes", "gpt_oss"),
    ("harmony", "gpt_oss"),
    ("harmony", "basic"),
    ("deepseek_v4", "deepseek_v4"),
    ("kimi_k2", "kimi_k25"),
    ("kimi_k3", "kimi_k3"),
    ("minimax_m2", "minimax_m2"),
    ("minimax_m3", "minimax_m3"),
    ("gemma4", "gemma4"),
]
LOOSE_PARTS = [
    '{"',
    '":',
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ", ",
    ";",
    ":",
    "(",
    ")",
    "=",
    "'",
    "<",
    ">",
    "|",
    "\n",
    " ",
]
LOOSE_PARTS += [
    '"name": "f"',
    '"arguments": {',
    '"parameters": ',
    '"id": "x"',
    "null",
    "12",
    "f",
    "functions.g:0",
    "é🦉",
]


def seeds(tools: str | None, reasoning: str | None) -> list[str]:
    return [TWO_CALLS.get(tools or "", ""), THOUGHTS.get(reasoning or "", "")]


@st.composite
def outputs(draw: st.DrawFn, tools: str | None, reasoning: str | None) -> str:
    """Similar to output in these formats: slices of valid ones, single parts and noise."""
    slices = [
        st.tuples(st.integers(0, len(seed)), st.integers(0, len(seed))).map(
            lambda ends, seed=seed: seed[min(ends) : max(ends)]
        )
        for seed in seeds(tools, reasoning)
        if seed
    ]
    whole = [seed for seed in seeds(tools, reasoning) if seed]
    part = st.one_of(*slices, st.sampled_from(whole), st.sampled_from(LOOSE_PARTS), st.text(max_size=5))
    return "".join(draw(st.lists(part, max_size=8)))


@pytest.mark.parametrize(("tools", "reasoning"), COMBINATIONS)
def test_the_result_does_not_depend_on_where_the_text_is_cut(tools: str | None, reasoning: str | None) -> None:
    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(outputs(tools, reasoning), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
    def check(text: str, sizes: list[int], inside: bool) -> None:
        options: dict[str, Any] = {"in_reasoning": inside, "tool_schemas": SCHEMAS}
        whole = parse(tools, reasoning, [text], **options)
        assert parse(tools, reasoning, cut(text, sizes), **options) == whole
        assert parse(tools, reasoning, text, **options) == whole

    check()


@pytest.mark.parametrize("tools", tool_formats())
def test_text_without_a_marker_character_passes_unchanged(tools: str) -> None:
    plain = st.text(st.characters(exclude_characters='<[{"ft◁', exclude_categories=["Cs"]), max_size=40)

    @settings(max_examples=30, deadline=None)
    @given(plain, st.lists(st.integers(1, 9), min_size=1, max_size=6))
    def check(text: str, sizes: list[int]) -> None:
        expected = [("text", text)] if text else []
        assert parse(tools, "basic", cut(text, sizes)) == expected

    check()


@pytest.mark.parametrize("tools", [name for name in TWO_CALLS if name != "harmony"])
def test_nothing_is_lost_of_an_output_without_calls(tools: str) -> None:
    """Without a call, all of the text comes out unchanged."""

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(outputs(tools, None))
    def check(text: str) -> None:
        events = parse(tools, None, [text])
        if not any(event[0] == "call" for event in events):
            assert "".join(event[1] for event in events) == text

    check()


def test_lone_surrogates_are_parsed_without_an_error() -> None:
    for tools, text in TWO_CALLS.items():
        parse(tools, None, [text.replace("Zürich", "\ud800").replace("f", "\udfff")])
        parse(tools, None, [text.replace("Zürich", "\\ud800").replace('"f"', '"\\udfff"')])


def test_deep_nesting_is_parsed_without_an_error() -> None:
    deep = "[" * 5000
    parse("hermes", None, [f'<tool_call>{{"arguments": {{"a": {deep}{"]" * 5000}}}, "name": "f"}}'])
    parse("pythonic", None, [f"[f(a={deep}{']' * 5000})]"])
    parse("glm4", None, [f"<tool_call>f<arg_key>a</arg_key><arg_value>{deep}</arg_value></tool_call>"])


@pytest.mark.parametrize(("tools", "reasoning"), COMBINATIONS)
def test_what_the_limit_cut_is_the_beginning_of_the_whole(tools: str | None, reasoning: str | None) -> None:
    """Whatever the model would have written next: nothing of a call is shown as text."""

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(outputs(tools, reasoning), st.integers(0, 200))
    def check(text: str, limit: int) -> None:
        whole = Seen(parse(tools, reasoning, [text]))
        shown = Seen(parse(tools, reasoning, [text[:limit]], cut=True))
        assert whole.text.startswith(shown.text)
        assert [name for name, _ in whole.calls][: len(shown.calls)] == [name for name, _ in shown.calls]

    check()


@pytest.mark.parametrize("tools", TWO_CALLS)
def test_a_call_cut_anywhere_leaves_no_text(tools: str) -> None:
    output = TWO_CALLS[tools]
    for limit in range(len(output)):
        shown = Seen(parse(tools, None, [output[:limit]], cut=True, tool_names=["f", "g"]))
        assert shown.text == "", output[:limit]


@pytest.mark.parametrize("tools", TWO_CALLS)
def test_an_end_anywhere_after_a_call_leaves_no_text(tools: str) -> None:
    """The model itself ends there, in the next call or in the marker that closes the last."""
    output = TWO_CALLS[tools]
    for end in range(len(output)):
        for pieces in ([output[:end]], output[:end]):
            shown = Seen(parse(tools, None, pieces, tool_names=["f", "g"]))
            if shown.calls:
                assert shown.text == "", output[:end]
