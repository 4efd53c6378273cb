from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.pipeline.parse import Event, ReasoningText, Text, ToolArgs, ToolStart, make_forced_parser
from pipeline.parse.outputs import see

CALLS = '[{"name": "f", "parameters": {"a": [1, "]"]}}, {"name": "g", "parameters": {}}]'
OUTPUTS = [
    (None, CALLS, ["f", "g"], ['{"a": [1, "]"]}', "{}"], ""),
    (None, "  " + CALLS, ["f", "g"], ['{"a": [1, "]"]}', "{}"], ""),
    (None, "I would rather not.", [], [], "I would rather not."),
    (None, "[      \n", [], [], ""),
    (None, CALLS[:10], [], [], ""),
    (None, CALLS[:55], ["f"], ['{"a": [1, "]"]}'], ""),
    (None, CALLS[:40], ["f"], ['{"a": [1, "'], ""),
    ("f", '{"city": "K}ln"}', ["f"], ['{"city": "K}ln"}'], ""),
    ("f", '\n{"city": "Lyon"}\n', ["f"], ['{"city": "Lyon"}'], ""),
    ("f", '{"city": "Ly', ["f"], ['{"city": "Ly'], ""),
    ("f", "no", [], [], "no"),
]
OWN = '<tool_call>\n{"name": "f", "arguments": {"city": "Lyon"}}\n</tool_call>'


def read(name: str | None, pieces: list[str], reasoning: str | None = None) -> list[Event]:
    parser = make_forced_parser(name, reasoning, new_id=lambda: "id")
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


@pytest.mark.parametrize("thoughts", ["", "<think>hm</think>"])
@pytest.mark.parametrize(("name", "text", "names", "arguments", "rest"), OUTPUTS)
@given(cuts=st.lists(st.integers(0, 100), max_size=6))
def test_a_forced_call_is_read_however_it_is_cut(
    name: str | None, text: str, names: list[str], arguments: list[str], rest: str, thoughts: str, cuts: list[int]
) -> None:
    whole = thoughts + text
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    events = read(name, pieces, "basic" if thoughts else None)
    assert [event.name for event in events if isinstance(event, ToolStart)] == names
    told = ["".join(e.fragment for e in events if isinstance(e, ToolArgs) and e.index == n) for n in range(len(names))]
    assert told == arguments
    assert "".join(event.text for event in events if isinstance(event, Text)) == rest
    assert "".join(event.text for event in events if isinstance(event, ReasoningText)) == ("hm" if thoughts else "")


@pytest.mark.parametrize("name", [None, "f"])
@given(cut=st.integers(0, len(OWN)))
def test_a_forced_call_may_come_in_the_models_own_form(name: str | None, cut: int) -> None:
    def events(text: str) -> list[Event]:
        parser = make_forced_parser(name, None, "hermes", new_id=lambda: "id")
        return parser.feed(text[:cut]) + parser.feed(text[cut:]) + parser.finish()

    whole = events(OWN)
    assert whole[0] == ToolStart(0, "id", "f")
    assert "".join(event.fragment for event in whole if isinstance(event, ToolArgs)) == '{"city": "Lyon"}'
    assert not any(isinstance(event, Text) for event in (*whole, *events(OWN[:cut])))


@pytest.mark.parametrize("reasoning", ["basic", "deepseek_r1", "minimax_m2", "kimi_k25", "deepseek_v4"])
def test_guided_json_is_content_although_the_prompt_opened_the_reasoning(reasoning: str) -> None:
    options: dict[str, Any] = {"in_reasoning": True, "guided": True}
    for text in ('{"a": 1}', " \n[1]"):
        assert see(None, reasoning, text, **options).text == text
    seen = see(None, reasoning, 'Hm {.</think>{"a": 1}', **options)
    assert (seen.reasoning, seen.text) == ("Hm {.", '{"a": 1}')
    assert see(None, reasoning, '{"a": 1}', in_reasoning=True).reasoning == '{"a": 1}'


def test_a_forced_call_is_a_call_although_the_prompt_opened_the_reasoning() -> None:
    parser = make_forced_parser("f", "basic", in_reasoning=True, new_id=lambda: "call_x")
    assert parser.feed('{"a": 1}') == [ToolStart(0, "call_x", "f"), ToolArgs(0, '{"a": 1}')]
    parser = make_forced_parser(None, "basic", "hermes", in_reasoning=True, new_id=lambda: "call_x")
    assert parser.feed(OWN) == [ToolStart(0, "call_x", "f"), ToolArgs(0, '{"city": "Lyon"}')]
