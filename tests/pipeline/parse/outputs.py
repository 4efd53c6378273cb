"""Runs outputs through parsers and joins the events, so that tests compare what a client would see."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from dynamo.pipeline.parse import Event, ReasoningText, Text, ToolArgs, ToolStart, make_parser

Merged = list[tuple[str, ...]]


def merged(events: Iterable[Event]) -> Merged:
    """The events in order, with adjacent ones of one kind joined."""
    out: Merged = []
    for event in events:
        match event:
            case Text(text):
                item = ("text", text)
            case ReasoningText(text):
                item = ("reasoning", text)
            case ToolStart(index, call_id, name):
                out.append(("call", str(index), call_id, name))
                continue
            case ToolArgs(index, fragment):
                item = (f"args {index}", fragment)
        assert item[1], "an event without content was emitted"
        if out and out[-1][0] == item[0]:
            item = (item[0], out.pop()[1] + item[1])
        out.append(item)
    return out


def parse(
    tools: str | None, reasoning: str | None, pieces: Iterable[str], *, cut: bool = False, **options: Any
) -> Merged:
    ids = itertools.count()
    parser = make_parser(tools, reasoning, new_id=lambda: f"call_{next(ids)}", **options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish(cut=cut)
    assert parser.saw_tool_call == any(isinstance(event, ToolStart) for event in events)
    return merged(events)


class Seen:
    """The events as a client would put them together."""

    def __init__(self, events: Merged) -> None:
        self.text = "".join(event[1] for event in events if event[0] == "text")
        self.reasoning = "".join(event[1] for event in events if event[0] == "reasoning")
        self.ids = [event[2] for event in events if event[0] == "call"]
        names = [event[3] for event in events if event[0] == "call"]
        self.calls = [
            (name, "".join(event[1] for event in events if event[0] == f"args {index}"))
            for index, name in enumerate(names)
        ]


def see(tools: str | None, reasoning: str | None, text: str, **options: Any) -> Seen:
    """Parses the text at once and character by character, and asserts that both agree."""
    whole = parse(tools, reasoning, [text], **options)
    assert parse(tools, reasoning, text, **options) == whole
    return Seen(whole)


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces: list[str] = []
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            return pieces
        pieces.append(text[at : at + size])
        at += size
    return pieces


SCHEMAS: Mapping[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "tags": {"type": "array"},
            "limit": {"type": ["number", "null"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
}

# One realistic output with two calls for each format that has calls: f({"city": "Zürich"}) and then g() without any.
TWO_CALLS: Mapping[str, str] = {
    "hermes": (
        '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    ),
    "jamba": '<tool_calls>[\n  {"name": "f", "arguments": {"city": "Zürich"}},\n  {"name": "g"}\n]</tool_calls>',
    "nemotron_deci": '<TOOLCALL>[{"name": "f", "arguments": {"city": "Zürich"}}, {"name": "g"}]</TOOLCALL>',
    "phi4": 'functools[{"name": "f", "arguments": {"city": "Zürich"}}, {"name": "g", "arguments": {}}]',
    "llama3_json": '{"name": "f", "parameters": {"city": "Zürich"}}; {"name": "g", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"city": "Zürich"}}, {"name": "g", "arguments": {}}]',
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
        '```json\n{"city": "Zürich"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v3_1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"city": "Zürich"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"city": "Zürich"}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=city>\nZürich\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>"
    ),
    "glm4": (
        "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>"
    ),
    "deepseek_v3_2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    "deepseek_v4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    ),
    "kimi_k3": (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
        "Zürich<|close|>argument<|sep|><|close|>call<|sep|>"
        '<|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">Zürich</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>'
    ),
    "minimax_m3": (
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<city>Zürich]<]minimax[>[</city>'
        ']<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="g">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>'
    ),
    "gemma4": '<|tool_call>call:f{city:<|"|>Zürich<|"|>}<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>',
    "pythonic": '[f(city="Zürich"), g()]',
    "harmony": (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Zürich"}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}<|call|>"
    ),
}

THOUGHTS: Mapping[str, str] = {
    "basic": "<think>\nHm.\n</think>\n\n",
    "deepseek_r1": "Hm.\n</think>\n\n",
    "granite": "Here is my thought process:\nHm.\nHere is my response:\n",
    "kimi": "◁think▷Hm.◁/think▷",
    "mistral": "[THINK]Hm.[/THINK]",
    "deepseek_v4": "<think>Hm.</think>",
    "kimi_k25": "<think>Hm.</think>",
    "kimi_k3": "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>",
    "minimax_m2": "Hm.\n</think>\n\n",
    "minimax_m3": "<mm:think>Hm.</mm:think>",
    "gemma4": "<|channel>thought\nHm.\n<channel|>",
    "gpt_oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>",
}
