from __future__ import annotations

import json
import re
from itertools import product

import pytest

from dynamo.pipeline.parse import (
    ToolStart,
    make_parser,
    opens_reasoning,
    reasoning_formats,
    skip_special_tokens,
    tool_formats,
)
from pipeline.parse.outputs import SCHEMAS, THOUGHTS, TWO_CALLS, see


@pytest.mark.parametrize("tools", TWO_CALLS)
def test_two_calls_in_one_output_are_both_found(tools: str) -> None:
    seen = see(tools, None, TWO_CALLS[tools])
    assert [(name, json.loads(args)) for name, args in seen.calls] == [("f", {"city": "Zürich"}), ("g", {})]
    assert seen.text == ""
    assert seen.reasoning == ""


@pytest.mark.parametrize("tools", [name for name in TWO_CALLS if name not in ("llama3_json", "pythonic", "harmony")])
def test_text_around_calls_is_kept_and_the_whitespace_after_them_dropped(tools: str) -> None:
    seen = see(tools, None, f"One moment.\n\n{TWO_CALLS[tools]}\n\nThere you go. ")
    assert len(seen.calls) == 2
    assert seen.text == "One moment.\n\nThere you go. "


@pytest.mark.parametrize("tools", TWO_CALLS)
def test_whitespace_before_calls_is_dropped_if_no_text_came_before(tools: str) -> None:
    seen = see(tools, None, f" \n{TWO_CALLS[tools]}\n")
    assert len(seen.calls) == 2
    assert seen.text == ""


@pytest.mark.parametrize("reasoning", THOUGHTS)
def test_thinking_is_split_from_the_answer(reasoning: str) -> None:
    seen = see(None, reasoning, f"{THOUGHTS[reasoning]}Yes & no.")
    assert (seen.reasoning.strip(), seen.text) == ("Hm.", "Yes & no.")


@pytest.mark.parametrize(
    ("tools", "reasoning"),
    # Harmony and kimi_k3 both frame the whole answer, so no model mixes them.
    [
        pair
        for pair in product(TWO_CALLS, [name for name in THOUGHTS if name != "gpt_oss"])
        if pair != ("harmony", "kimi_k3")
    ],
)
def test_calls_follow_thinking_in_every_combination(tools: str, reasoning: str) -> None:
    seen = see(tools, reasoning, THOUGHTS[reasoning] + TWO_CALLS[tools])
    assert seen.reasoning.strip() == "Hm."
    assert [name for name, _ in seen.calls] == ["f", "g"]
    assert seen.text == ""


@pytest.mark.parametrize("reasoning", ["basic", "kimi", "mistral", "granite"])
@pytest.mark.parametrize("tools", [name for name in TWO_CALLS if name != "harmony"])
def test_no_call_is_recognised_inside_thinking(tools: str, reasoning: str) -> None:
    opener, closer = THOUGHTS[reasoning].split("Hm.")
    seen = see(tools, reasoning, f"{opener}{TWO_CALLS[tools]}{closer}No.")
    assert seen.calls == []
    assert seen.reasoning.strip() == TWO_CALLS[tools]
    assert seen.text == "No."


def test_channels_in_the_answer_still_find_the_calls_of_another_format() -> None:
    seen = see("hermes", "gpt_oss", THOUGHTS["gpt_oss"] + TWO_CALLS["hermes"] + "<|return|>")
    assert (seen.reasoning, [name for name, _ in seen.calls], seen.text) == ("Hm.", ["f", "g"], "")


@pytest.mark.parametrize("alias", ["qwen25", "qwen"])
def test_an_alias_reads_like_the_format_it_names(alias: str) -> None:
    assert see(alias, None, TWO_CALLS["hermes"]).calls == see("hermes", None, TWO_CALLS["hermes"]).calls


def test_an_unknown_format_is_rejected_with_the_list_of_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"tool call format 'hermse'; valid: .*\bhermes\b.*\bqwen3_coder\b"):
        make_parser("hermse", None)
    with pytest.raises(ValueError, match=r"reasoning format 'thinker'; valid: .*\bbasic\b.*\bstep3\b"):
        make_parser(None, "thinker")
    with pytest.raises(ValueError, match="tool call format ''"):
        skip_special_tokens("", None)


def test_every_listed_format_makes_a_parser() -> None:
    assert set(TWO_CALLS) <= set(tool_formats())
    assert set(THOUGHTS) <= set(reasoning_formats())
    for tools in tool_formats():
        for reasoning in reasoning_formats():
            assert make_parser(tools, reasoning).feed("") == []


def test_special_tokens_are_kept_for_formats_that_use_them() -> None:
    assert skip_special_tokens(None, None)
    assert skip_special_tokens("glm47", "qwen3")
    assert not skip_special_tokens("harmony", None)
    assert not skip_special_tokens("kimi_k2", "basic")
    assert not skip_special_tokens("qwen", None)
    assert not skip_special_tokens(None, "mistral")


def test_output_starts_inside_reasoning_if_the_prompt_opens_it() -> None:
    assert opens_reasoning("qwen3", "<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert opens_reasoning("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>")
    assert not opens_reasoning(None, "<think>")
    seen = see(None, "qwen3", "\nHm.</think>Yes.", in_reasoning=True)
    assert (seen.reasoning, seen.text) == ("Hm.", "Yes.")


def test_a_call_gets_a_fresh_id_in_the_usual_form() -> None:
    ids = {
        event.id
        for _ in range(3)
        for event in make_parser("hermes", None).feed(TWO_CALLS["hermes"])
        if isinstance(event, ToolStart)
    }
    assert len(ids) == 6
    assert all(re.fullmatch("call_[0-9a-f]{24}", call_id) for call_id in ids)


def test_ids_that_a_format_carries_are_used() -> None:
    assert see("kimi_k2", None, TWO_CALLS["kimi_k2"]).ids == ["functions.f:0", "functions.g:1"]
    mistral = '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]h{"b": 2}'
    seen = see("mistral", None, mistral)
    assert seen.ids == ["a1B2c3D4e", "call_0", "call_1"]
    assert seen.calls == [("f", '{"a": 1}'), ("g", "{}"), ("h", '{"b": 2}')]
    old = '[TOOL_CALLS] [{"id": "a1B2c3D4e", "name": "f", "arguments": {}}, {"name": "g", "arguments": {}, "id": "x"}]'
    assert see("mistral", None, old).ids == ["a1B2c3D4e", "call_0"]


def test_a_kimi_call_without_a_number_gets_an_id_of_its_own() -> None:
    text = "<|tool_call_begin|>get_weather<|tool_call_argument_begin|>{}<|tool_call_end|>"
    seen = see("kimi_k2", None, text)
    assert (seen.calls, seen.ids) == ([("get_weather", "{}")], ["call_0"])


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n<｜tool▁call▁end｜>"),
        ("deepseek_v3_1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|><|tool_call_end|>"),
    ],
)
def test_a_header_followed_by_nothing_is_a_call_without_arguments(tools: str, text: str) -> None:
    seen = see(tools, None, text)
    assert (seen.calls, seen.text) == ([("f", "{}")], "")


ARGUMENTS = [
    "{}",
    '{"a": {"b": [1, {"c": "}]"}], "d": null}}',
    '{"quote": "she said \\"no}\\" and left \\\\"}',
    '{"code": "if (a < b) { return \\"</tool_call>\\"; }\\n"}',
    '{"emoji": "🦉 ünï\\u00e9", "n": -1.5e-3, "t": true}',
    '{\n  "a":\t1\n}',
]


@pytest.mark.parametrize("args", ARGUMENTS)
@pytest.mark.parametrize(
    ("tools", "before", "after"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        ("hermes", '<tool_call>{"arguments": ', ', "name": "f"}</tool_call>'),
        ("jamba", '<tool_calls>[{"name": "f", "arguments": ', "}]</tool_calls>"),
        ("phi4", 'functools[{"name": "f", "arguments": ', "}]"),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": ', "}"),
        ("llama3_json", '{"type": "function", "parameters": ', ', "name": "f"}'),
        ("mistral", "[TOOL_CALLS]f[ARGS]", ""),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "\n```<｜tool▁call▁end｜>"),
        ("deepseek_v3_1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0 <|tool_call_argument_begin|> ", "<|tool_call_end|>"),
        ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"),
    ],
)
def test_json_arguments_pass_verbatim(tools: str, before: str, after: str, args: str) -> None:
    seen = see(tools, None, before + args + after)
    assert (seen.calls, seen.text) == ([("f", args)], "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "{}"),
        (', "arguments": null', "{}"),
        (', "arguments": ""', "{}"),
        (', "parameters": {"a": 1}', '{"a": 1}'),
        (', "arguments": "{\\"a\\": \\"b\\"}"', '{"a": "b"}'),
    ],
)
def test_arguments_missing_or_written_another_way_become_an_object(arguments: str, expected: str) -> None:
    assert see("hermes", None, f'<tool_call>{{"name": "f"{arguments}}}</tool_call>').calls == [("f", expected)]


def test_qwen3_coder_values_follow_the_schema() -> None:
    text = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n['a', \"b\"]\n</parameter>\n"
        "<parameter=limit>\nnull\n</parameter>\n<parameter=note>\nline 1\n\n  line 2 <b>\n</parameter>\n"
        "<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>"
    )
    seen = see("qwen3_coder", None, text, tool_schemas=SCHEMAS)
    assert json.loads(seen.calls[0][1]) == {
        "city": "42",
        "days": 3,
        "metric": True,
        "tags": ["a", "b"],
        "limit": None,
        "note": "line 1\n\n  line 2 <b>",
        "other": 7,
    }


def test_qwen3_coder_works_without_its_outer_tag() -> None:
    seen = see("qwen3_coder", None, "<function=f>\n<parameter=a>\nx</parameter>\n</function>")
    assert (seen.calls, seen.text) == ([("f", '{"a": "x"}')], "")


def test_glm_values_follow_the_schema_with_and_without_line_breaks() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>00 {</arg_value>"
    text += "<arg_key>days</arg_key>\n<arg_value>3</arg_value></tool_call><tool_call>now</tool_call>"
    seen = see("glm4", None, text, tool_schemas=SCHEMAS)
    assert seen.calls == [("get_weather", '{"city": "00 {", "days": 3}'), ("now", "{}")]


def test_pythonic_arguments_become_json() -> None:
    text = "[a.f(x=-1.5, s='it\\'s, (ok)', l=[1, {'k': None}], t=(True, false),), g(\n  u=\"\\u00e9🦉\\n\"\n)]"
    seen = see("pythonic", None, f"<|python_start|>{text}<|python_end|>")
    assert [(name, json.loads(args)) for name, args in seen.calls] == [
        ("a.f", {"x": -1.5, "s": "it's, (ok)", "l": [1, {"k": None}], "t": [True, False]}),
        ("g", {"u": "é🦉\n"}),
    ]


def test_harmony_channels_say_what_is_reasoning_call_and_content() -> None:
    text = (
        "<|channel|>analysis<|message|>Need weather.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": "<b>"}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>Sunny, <|maybe|>.<|return|>"
    )
    seen = see("harmony", "gpt_oss", text)
    assert seen.reasoning == "Need weather."
    assert seen.calls == [("f", '{"a": "<b>"}')]
    assert seen.text == "Let me look.Sunny, <|maybe|>."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}', [("f", '{"a": 1}')]),
        ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", [("f", "{}")]),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", [("f", "{}")]),
        ("<|channel|>commentary to=f<|message|>{}<|call|>", [("f", "{}")]),
        ('<|channel|>analysis<|message|>x<|channel|>commentary to=functions.f<|message|>{"a":1}', [("f", '{"a":1}')]),
    ],
)
def test_harmony_headers_come_in_several_shapes(text: str, expected: list[tuple[str, str]]) -> None:
    seen = see("harmony", None, text, tool_names=["f"])
    assert (seen.calls, seen.text) == (expected, "")


def test_a_message_to_a_built_in_tool_is_reasoning() -> None:
    seen = see("harmony", None, "<|channel|>analysis to=python code<|message|>print(1)<|end|>", tool_names=["f"])
    assert (seen.calls, seen.reasoning) == ([], "print(1)")


def test_a_function_message_is_text_if_calls_are_not_parsed() -> None:
    text = "<|channel|>commentary to=functions.f<|message|>{}"
    assert see(None, "gpt_oss", text + "<|call|>").text == text
