from __future__ import annotations

import pytest

from dynamo.pipeline.parse import ReasoningText, Text, ToolArgs, ToolStart, make_parser, tool_formats
from pipeline.parse.outputs import THOUGHTS, TWO_CALLS, parse, see

M3 = "]<]minimax[>["


@pytest.mark.parametrize("tools", [None, *tool_formats()])
@pytest.mark.parametrize("reasoning", [None, "basic", "gpt_oss"])
@pytest.mark.parametrize("text", ["Plain.", " \n lead", "a < b && c[0] > {1}; ünï 🦉\n\n", "<", "f(x) = [", "\n"])
def test_text_without_markers_passes_unchanged(tools: str | None, reasoning: str | None, text: str) -> None:
    seen = see(tools, reasoning, text)
    assert (seen.text, seen.reasoning, seen.calls) == (text, "", [])


def test_arguments_stream_while_they_arrive() -> None:
    parser = make_parser("hermes", None, new_id=lambda: "call_x")
    assert parser.feed('<tool_call>{"name": "f", "arguments":') == []
    assert not parser.saw_tool_call
    assert parser.feed(' {"a') == [ToolStart(0, "call_x", "f"), ToolArgs(0, '{"a')]
    assert parser.saw_tool_call
    assert parser.feed('": 1') == [ToolArgs(0, '": 1')]
    assert parser.feed("}}\n</tool_") == [ToolArgs(0, "}")]
    assert parser.feed("call>\n\nBye") == [Text("Bye")]
    assert parser.finish() == []


def test_tagged_values_of_unknown_type_stream_one_at_a_time() -> None:
    parser = make_parser("qwen3_coder", None, new_id=lambda: "call_x")
    assert parser.feed("<function=f>") == [ToolStart(0, "call_x", "f")]
    assert parser.feed("<parameter=a>\n1\n</parameter>\n<parameter=b>") == [ToolArgs(0, '{"a": 1, "b": ')]
    assert parser.feed("x") == []
    assert parser.feed("</parameter>") == [ToolArgs(0, '"x"')]
    assert parser.feed("</function>") == [ToolArgs(0, "}")]


@pytest.mark.parametrize(
    ("tools", "before", "after"),
    [
        ("qwen3_coder", "<function=f>\n<parameter=text>\n", "\n</parameter>\n</function>"),
        ("glm4", "<tool_call>f<arg_key>text</arg_key><arg_value>", "</arg_value></tool_call>"),
        ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="text">', "</parameter></invoke>"),
        ("minimax_m3", f'{M3}<tool_call>{M3}<invoke name="f">{M3}<text>', f"{M3}</text>{M3}</invoke>"),
        ("gemma4", '<|tool_call>call:f{text:<|"|>', '<|"|>}<tool_call|>'),
        (
            "deepseek_v4",
            '<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="text" string="true">',
            "</｜DSML｜parameter></｜DSML｜invoke>",
        ),
        (
            "kimi_k3",
            '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="text" type="string"<|sep|>',
            "<|close|>argument<|sep|><|close|>call<|sep|>",
        ),
    ],
)
def test_a_value_that_is_certainly_a_string_streams_while_it_arrives(tools: str, before: str, after: str) -> None:
    schema = {"f": {"type": "object", "properties": {"text": {"type": "string"}}}}
    parser = make_parser(tools, None, new_id=lambda: "call_x", tool_schemas=schema)
    assert parser.feed(before) == [ToolStart(0, "call_x", "f"), ToolArgs(0, '{"text": "')]
    assert parser.feed('a "b') == [ToolArgs(0, 'a \\"b')]
    assert parser.feed("\\ ü\nc") == [ToolArgs(0, "\\\\ ü\\nc")]
    assert parser.feed(after) == [ToolArgs(0, '"}')]


def test_a_partial_marker_is_held_back_until_it_is_decided() -> None:
    parser = make_parser("hermes", "basic")
    assert parser.feed("<th") == []
    assert parser.feed("ink>Hm") == [ReasoningText("Hm")]
    assert parser.feed(" a </thi") == [ReasoningText(" a ")]
    assert parser.feed("s") == [ReasoningText("</this")]
    assert parser.feed("</think>A <tool") == [Text("A ")]
    assert parser.feed("box>") == [Text("<toolbox>")]
    assert parser.feed("<tool_call") == []
    assert parser.finish() == [Text("<tool_call")]


def test_an_ended_output_takes_no_more_text() -> None:
    parser = make_parser("hermes", None)
    parser.feed("Plain")
    assert parser.finish() == []
    assert parser.finish() == []
    with pytest.raises(ValueError, match="already ended"):
        parser.feed("more")


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("hermes", "The <tool_call> tag opens a call."),
        ("hermes", "<tool_call>\nnot json</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments"'),
        ("hermes", '<tool_call>{"arguments": {"a": "b"'),
        ("hermes", "<tool_call>"),
        ("jamba", "<tool_calls>[]</tool_calls>"),
        ("phi4", "import functools; functools.reduce(f, xs)"),
        ("phi4", "functools[cache]"),
        ("mistral", "[TOOL_CALLS] is how it starts"),
        ("mistral", "[TOOL_CALLS]f[ARGS]nothing"),
        ("mistral", "[TOOL_CALLS][1, 2]"),
        ("llama3_json", '{"city": "Paris", "name": "f", "parameters": {}}'),
        ("llama3_json", '{"name": "Bob", "age": 3}'),
        ("llama3_json", '{"name": "Bob"}'),
        ("llama3_json", 'As JSON: {"name": "f", "parameters": {}}'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[link](https://example.org)"),
        ("pythonic", "[f(x) for x in y]"),
        ("pythonic", "[f(a=b)]"),
        ("pythonic", "[sorted(key=lambda x: x)]"),
        ("pythonic", "[f(a=1"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```python\n"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>oops<|tool_call_end|>"),
        ("qwen3_coder", "<tool_call>\n<parameter=a>\n1\n</parameter>\n</tool_call>"),
        ("qwen3_coder", "<function=>"),
        ("qwen3_coder", "<function=get weather>"),
        ("glm4", "<tool_call>just words</tool_call>"),
        ("glm4", "<tool_call>\n</tool_call>"),
        ("glm4", "<tool_call>name"),
        ("harmony", "<|channel|>no message ever follows"),
        ("harmony", "<|channel|>" + "long " * 200 + "<|message|>x"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>not json"),
        ("harmony", " to=functions.f and so on"),
    ],
)
def test_what_only_looks_like_a_call_comes_out_as_text(tools: str, text: str) -> None:
    seen = see(tools, None, text)
    assert (seen.calls, seen.text) == ([], text)


def test_a_call_is_found_right_after_text_that_looked_like_one() -> None:
    seen = see("hermes", None, 'Use <tool_call>, as in <tool_call> <tool_call>{"name": "f"}</tool_call>.')
    assert (seen.text, seen.calls) == ("Use <tool_call>, as in <tool_call> .", [("f", "{}")])


def test_a_later_element_that_is_not_a_call_comes_out_as_text() -> None:
    seen = see("jamba", None, '<tool_calls>[{"name": "f", "arguments": {}}, {"x": 1}]</tool_calls>')
    assert (seen.calls, seen.text) == ([("f", "{}")], ', {"x": 1}]</tool_calls>')
    seen = see("llama3_json", None, '{"name": "f", "parameters": {}}; and more')
    assert (seen.calls, seen.text) == ([("f", "{}")], "; and more")


def test_a_call_that_becomes_invalid_ends_there_and_the_rest_is_text() -> None:
    seen = see("hermes", None, '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>Hello')
    assert (seen.calls, seen.text) == ([("f", '{"a": 1')], "Hello")
    seen = see("qwen3_coder", None, "<function=f>\n<parameter=a>\n1\n</parameter>\noops</function>")
    assert (seen.calls, seen.text) == ([("f", '{"a": 1')], "oops</function>")
    seen = see("pythonic", None, "[f(a=1, b=oops)]")
    assert (seen.calls, seen.text) == ([("f", '{"a": 1')], "b=oops)]")
    seen = see("harmony", None, '<|channel|>commentary to=functions.f<|message|>{"a"<|call|>')
    assert (seen.calls, seen.text) == ([("f", '{"a"')], "")


@pytest.mark.parametrize(
    ("tools", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"path": "/tmp/x', '{"path": "/tmp/x'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"path": "a\\', '{"path": "a\\'),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{", "{"),
        ("qwen3_coder", "<function=f>\n<parameter=path>\n/tmp/x", '{"path": "/tmp/x'),
        ("qwen3_coder", "<function=f>\n", ""),
        ("glm4", "<tool_call>f<arg_key>n</arg_key><arg_value>12", '{"n": "12'),
        ("pythonic", "[f(a=1,", '{"a": 1'),
    ],
)
def test_an_unfinished_call_keeps_incomplete_json_arguments(tools: str, text: str, arguments: str) -> None:
    seen = see(tools, None, text)
    assert (seen.calls, seen.text) == ([("f", arguments)], "")


@pytest.mark.parametrize("tools", [name for name in TWO_CALLS if name not in ("llama3_json", "pythonic")])
def test_a_marked_call_of_a_tool_that_was_not_offered_is_still_a_call(tools: str) -> None:
    assert [name for name, _ in see(tools, None, TWO_CALLS[tools], tool_names=["f"]).calls] == ["f", "g"]


@pytest.mark.parametrize("tools", ["llama3_json", "pythonic"])
def test_an_unmarked_call_must_be_of_a_tool_that_was_offered(tools: str) -> None:
    text = TWO_CALLS[tools]
    assert [name for name, _ in see(tools, None, text, tool_names={"f", "g"}).calls] == ["f", "g"]
    seen = see(tools, None, text, tool_names=["h"])
    assert (seen.calls, seen.text) == ([], text)


def test_a_bare_object_needs_no_arguments_if_it_names_an_offered_tool() -> None:
    assert see("llama3_json", None, '{"name": "now"}', tool_names=["now"]).calls == [("now", "{}")]


def test_a_tag_mentioned_in_the_answer_does_not_open_thinking() -> None:
    seen = see(None, "basic", "<think>a</think>Write <think> first.")
    assert (seen.reasoning, seen.text) == ("a", "Write <think> first.")
    seen = see(None, "basic", "Write <think> first.")
    assert (seen.reasoning, seen.text) == ("", "Write <think> first.")


@pytest.mark.parametrize("reasoning", ["deepseek_r1", "step3", "nemotron_nano"])
def test_models_that_always_think_start_inside_with_or_without_the_opening(reasoning: str) -> None:
    for text in ("<think>\nHm.</think>Yes.", "Hm.</think>Yes."):
        seen = see(None, reasoning, text)
        assert (seen.reasoning, seen.text) == ("Hm.", "Yes.")
    assert see(None, reasoning, "Hm. <tool_call>").reasoning == "Hm. <tool_call>"


@pytest.mark.parametrize("reasoning", [name for name in THOUGHTS if name not in ("granite", "gpt_oss")])
def test_an_empty_thought_leaves_no_trace(reasoning: str) -> None:
    opener, closer = THOUGHTS[reasoning].split("Hm.")
    assert parse(None, reasoning, [f"{opener}\n\n{closer}Yes."]) == [("text", "Yes.")]


def test_channels_can_start_inside_the_analysis() -> None:
    text = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    for tools, reasoning in (("harmony", None), ("harmony", "gpt_oss"), (None, "gpt_oss"), ("hermes", "gpt_oss")):
        seen = see(tools, reasoning, text, in_reasoning=True)
        assert (seen.reasoning, seen.text) == ("Hm.", "Yes.")
