"""What a model's template writes for a message is parsed back into that message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.model import ChatTemplate
from dynamo.pipeline.parse import opens_reasoning
from pipeline.parse.outputs import Seen, cut, parse
from pipeline.parse.templates import TEMPLATES, TURN_ENDS

REASONING = {"hermes": "basic", "deepseek_v3_2": "deepseek_v4"}
# What these formats cannot express in a name or a key: they do not escape it.
UNESCAPED = {"deepseek_v3_2": '">', "deepseek_v4": '">', "minimax_m2": '">', "hermes": '"\\'}
UNESCAPED |= {"minimax_m3": '"></', "gemma4": '"<>{}[],:', "kimi_k3": "<|"}

Calls = list[tuple[str, dict[str, Any]]]


def output(template: ChatTemplate, message: dict[str, Any]) -> tuple[str, str]:
    """The prompt, and what the model wrote if this message was its answer."""
    asked = [{"role": "user", "content": "Go."}]
    prompt = template.render(asked)
    whole = template.render([*asked, {"role": "assistant", **message}], add_generation_prompt=False)
    assert whole.startswith(prompt)
    text = whole[len(prompt) :]
    for end in TURN_ENDS:
        text = text.removesuffix(end)
    return prompt, text


def message_of(calls: Calls, content: str = "", reasoning: str = "") -> dict[str, Any]:
    tool_calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return {"content": content, "reasoning_content": reasoning, **({"tool_calls": tool_calls} if calls else {})}


def schema_of(value: Any) -> dict[str, Any]:
    match value:
        case dict():
            return {"type": "object", "properties": {key: schema_of(inner) for key, inner in value.items()}}
        case list():
            return {"type": "array", "items": {"anyOf": [schema_of(inner) for inner in value]}}
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case _:
            return {"type": "null"}


def read_back(name: str, template: ChatTemplate, message: dict[str, Any], calls: Calls, sizes: list[int]) -> Seen:
    prompt, text = output(template, message)
    reasoning = REASONING.get(name, name)
    options: dict[str, Any] = {
        "in_reasoning": opens_reasoning(reasoning, prompt),
        "tool_schemas": {tool: schema_of(arguments) for tool, arguments in calls},
    }
    whole = parse(name, reasoning, [text], **options)
    assert parse(name, reasoning, cut(text, sizes), **options) == whole
    return Seen(whole)


def labels(name: str) -> st.SearchStrategy[str]:
    characters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=UNESCAPED[name])
    return st.text(characters, min_size=1, max_size=12).filter(lambda text: text == text.strip() and text != "item")


def values(name: str) -> st.SearchStrategy[Any]:
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    numbers = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False)
    scalars = st.one_of(texts, numbers, st.booleans())
    if name == "minimax_m3":  # it leaves out nulls, and items of a list have one type
        same = st.one_of(st.lists(texts, min_size=1, max_size=3), st.lists(numbers, min_size=1, max_size=3))
        keyed = st.dictionaries(labels(name), scalars | same, min_size=1, max_size=3)
        return scalars | same | keyed | st.lists(same, min_size=1, max_size=1) | st.just([]) | st.just({})
    return st.recursive(
        scalars | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(labels(name), inner, max_size=3),
        max_leaves=8,
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_any_calls_a_template_writes_are_read_back(name: str) -> None:
    template = ChatTemplate({"default": TEMPLATES[name]})
    call = st.tuples(labels(name), st.dictionaries(labels(name), values(name), max_size=4))

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(call, min_size=1, max_size=3, unique_by=lambda each: each[0]),
        st.lists(st.integers(1, 9), min_size=1, max_size=6),
    )
    def check(calls: Calls, sizes: list[int]) -> None:
        seen = read_back(name, template, message_of(calls, reasoning="Hm."), calls, sizes)
        assert [(tool, json.loads(arguments)) for tool, arguments in seen.calls] == calls
        assert seen.reasoning.strip() == "Hm."
        assert seen.text.strip() == ""

    check()


@pytest.mark.parametrize("name", TEMPLATES)
def test_reasoning_text_and_calls_are_told_apart(name: str) -> None:
    template = ChatTemplate({"default": TEMPLATES[name]})
    calls: Calls = [
        (
            "look_up",
            {"words": ['say "hi" & <go>', "Zürich 你好 🦉"], "deep": {"a": {"b": [1, 2.5]}}, "on": True, "n": -3},
        ),
        ("böse/name.v2-x", {}),
    ]
    seen = read_back(name, template, message_of(calls, "One moment.", "Hm, <b>."), calls, [1])
    assert [(tool, json.loads(arguments)) for tool, arguments in seen.calls] == calls
    assert (seen.reasoning.strip(), seen.text.strip()) == ("Hm, <b>.", "One moment.")


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_without_calls_or_reasoning_is_text(name: str) -> None:
    template = ChatTemplate({"default": TEMPLATES[name]})
    seen = read_back(name, template, message_of([], 'Use <b> & {"a": [1]}.'), [], [1])
    assert (seen.calls, seen.reasoning, seen.text.strip()) == ([], "", 'Use <b> & {"a": [1]}.')
