"""Finds the formats of a model's calls and reasoning in its chat template.

A tool call format is proven: the template writes calls, and this format alone reads back the same calls. A reasoning
format is recognised by its markers.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dynamo.model import ChatTemplate, TemplateError

from .events import Text, ToolArgs, ToolStart
from .formats import TOOL_FORMATS
from .parser import make_parser
from .values import parsed_json

_QUESTION: Final = "What does «7e1f» mean?"
_WORDS: Final = ("7e1f", "8d2a")
_TOOL: Final[dict[str, Any]] = {
    "name": "look_up",
    "description": "Look up a word.",
    "parameters": {
        "type": "object",
        "properties": {
            "word": {"type": "string", "description": "The word."},
            "limit": {"type": "integer", "description": "The longest answer."},
            "exact": {"type": "boolean", "description": "Whether to look for this word only."},
            "fields": {"type": "array", "items": {"type": "string"}, "description": "The fields to show."},
        },
        "required": ["word"],
    },
}
_LEFT_OVER: Final = re.compile("tool|func|call|invoke", re.IGNORECASE)
"""In the text before a call: a marker that the format does not know."""

_REASONING_MARKERS: Final = (
    ("gemma4", "<|channel>thought"),
    ("minimax_m3", "<mm:think>"),
    ("kimi_k3", "<|open|>think<|sep|>"),
    ("gpt_oss", "<|channel|>analysis<|message|>"),
    ("mistral", "[THINK]"),
    ("kimi", "◁think▷"),
    ("granite", "Here is my thought process:"),
)
_WITH_THINK_TAGS: Final = {
    "deepseek_v3_2": "deepseek_v4",
    "deepseek_v4": "deepseek_v4",
    "kimi_k2": "kimi_k25",
    "minimax_m2": "minimax_m2",
}
"""The reasoning format of models with these calls, if they reason between <think> and </think>."""


def guess_formats(template: ChatTemplate) -> tuple[str | None, str | None]:
    """The tool call format and the reasoning format; None where the template shows none that we know."""
    tools = _guess_tools(template)
    return tools, _guess_reasoning(template, tools)


def _guess_tools(template: ChatTemplate) -> str | None:
    fitting: set[str] = set()
    # Some templates accept only ids of nine letters and digits, others write the id as the name of the tool.
    for id_form in ("lookup{:03}", "functions.look_up:{}"):
        calls, texts = _written_calls(template, id_form)
        fitting |= {name for name in TOOL_FORMATS if any(_reads_back(name, text, calls) for text in texts)}
    return fitting.pop() if len(fitting) == 1 else None


def _written_calls(template: ChatTemplate, id_form: str) -> tuple[int, list[str]]:
    """How many calls the template writes in one answer, and the text that contains them; no text if it writes none."""
    tools = [{"type": "function", "function": _TOOL}]
    question = {"role": "user", "content": _QUESTION}
    for calls in range(len(_WORDS), 0, -1):
        made = []
        for at in range(calls):
            function = {"name": _TOOL["name"], "arguments": json.dumps(_arguments(at))}
            made.append({"id": id_form.format(at), "type": "function", "function": function})
        answer = {"role": "assistant", "content": "", "tool_calls": made}
        try:
            prompt = template.render([question], tools=tools)
            whole = template.render([question, answer], tools=tools, add_generation_prompt=False)
        except TemplateError:
            continue
        after = whole.rpartition(_QUESTION)[2]
        if all(word in after for word in _WORDS[:calls]):
            return calls, [after, whole.removeprefix(prompt)] if whole.startswith(prompt) else [after]
    return 0, []


def _arguments(at: int) -> dict[str, Any]:
    return {"word": _WORDS[at], "limit": 3, "exact": True, "fields": ["a b", "c"]}


def _reads_back(name: str, text: str, calls: int) -> bool:
    parser = make_parser(name, None, tool_names=[_TOOL["name"]], tool_schemas={_TOOL["name"]: _TOOL["parameters"]})
    events = [*parser.feed(text), *parser.finish()]
    before, found = "", list[tuple[str, str]]()
    for event in events:
        match event:
            case ToolStart(name=called):
                found.append((called, ""))
            case ToolArgs(fragment=fragment):
                found[-1] = (found[-1][0], found[-1][1] + fragment)
            case Text(text) if not found:
                before += text
    read = [(called, parsed_json(arguments)) for called, arguments in found]
    return read == [(_TOOL["name"], _arguments(at)) for at in range(calls)] and not _LEFT_OVER.search(before)


def _guess_reasoning(template: ChatTemplate, tools: str | None) -> str | None:
    try:
        prompt = template.render([{"role": "user", "content": _QUESTION}])
    except TemplateError:
        prompt = ""
    shown = "\n".join((*template.sources, prompt))
    for name, marker in _REASONING_MARKERS:
        if marker in shown:
            return name
    return _WITH_THINK_TAGS.get(tools or "", "basic") if "</think>" in shown else None
