"""Custom tools, whose input is text: offered to the model as functions with one argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence

from dynamo.pipeline.choice import ChoiceSink, Finish, TokenLogprob
from dynamo.protocols.chat import CUSTOM_INPUT, AnyTool, ChatRequest, CustomCall, CustomTool, FunctionCall, Tool
from dynamo.protocols.errors import DynamoException

UNENFORCED = "grammars that only the model's prompt mentions"
_OPENING = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"')
_HIGH, _HEX = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[0-9a-fA-F]{4}"
_INVALID = r"\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])"
_ALONE = rf"{_HIGH}(?=[^\\]|\\[^u]|{_INVALID})"
_WHOLE = re.compile(rf'(?:[^"\\]+|\\[^u]|{_HIGH}{_HEX}|(?!{_HIGH}){_HEX}|{_ALONE}|{_INVALID})*', re.DOTALL)
"""The inside of a JSON string up to its end, or up to an escape that more characters may belong to."""
_ESCAPE = re.compile(rf"({_HIGH}{_HEX})|({_HEX})|\\(.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}


def custom_tools(request: ChatRequest) -> frozenset[str]:
    """The names of the request's custom tools."""
    return frozenset(tool.custom.name for tool in request.tools or () if isinstance(tool, CustomTool))


def lark_tools(request: ChatRequest) -> list[str]:
    """The names of custom tools with a grammar that no engine can enforce inside the JSON of a call."""
    named = [tool.custom for tool in request.tools or () if isinstance(tool, CustomTool)]
    return [each.name for each in named if each.grammar and each.grammar.syntax == "lark"]


def as_functions(tools: Sequence[AnyTool]) -> list[Tool]:
    return [tool if isinstance(tool, Tool) else Tool(function=tool.function) for tool in tools]


def called_function(call: CustomCall) -> FunctionCall:
    """The call as the model made it."""
    return FunctionCall(call.name, json.dumps({CUSTOM_INPUT: call.input}, ensure_ascii=False))


class CustomInputs:
    """Passes a choice on, with the input of custom tools in place of the JSON arguments that hold it."""

    def __init__(self, choice: ChoiceSink, names: Collection[str]) -> None:
        self._choice = choice
        self._names = names
        self._index = -1
        self._input: InputReader | None = None
        self.escaped: Callable[[str], None] = choice.escaped
        self.text: Callable[[str], None] = choice.text
        self.reasoning: Callable[[str], None] = choice.reasoning
        self.logprobs: Callable[[list[TokenLogprob]], None] = choice.logprobs
        self.prompt_logprobs: Callable[[list[TokenLogprob]], None] = choice.prompt_logprobs

    def tool_start(self, index: int, id: str, name: str) -> None:
        self._end_call()
        self._choice.tool_start(index, id, name)
        self._index, self._input = index, InputReader() if name in self._names else None

    def tool_arguments(self, index: int, fragment: str) -> None:
        if self._input is None:
            self._choice.tool_arguments(index, fragment)
        elif text := self._input.add(fragment):
            self._choice.tool_arguments(index, text)

    def finish(self, finish: Finish) -> None:
        self._end_call()
        self._choice.finish(finish)

    def fail(self, error: DynamoException) -> None:
        self._choice.fail(error)

    def _end_call(self) -> None:
        reader, self._input = self._input, None
        if reader and (rest := reader.end()):
            self._choice.tool_arguments(self._index, rest)


class InputReader:
    """Reads the input of one call out of its arguments `{"input": "…"}` while they arrive.

    Arguments of any other form are read at their end: the only text in them is the input, or else all of them.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._in_string = False
        self._complete = False

    def add(self, fragment: str) -> str:
        """The input that the fragment adds."""
        if self._complete:
            return ""
        self._unread += fragment
        if not self._in_string:
            opening = _OPENING.match(self._unread)
            if not opening:
                return ""
            self._in_string, self._unread = True, self._unread[opening.end() :]
        whole = _WHOLE.match(self._unread)
        assert whole
        self._unread = self._unread[whole.end() :]
        self._complete = self._unread.startswith('"')
        return _ESCAPE.sub(_unescaped, whole[0])

    def end(self) -> str:
        """The input that was not returned yet."""
        if self._in_string:
            return ""
        try:
            value = json.loads(self._unread, strict=False)
        except (ValueError, RecursionError):
            return self._unread
        if isinstance(value, dict):
            value = value.get(CUSTOM_INPUT, next(iter(value.values())) if len(value) == 1 else value)
        return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else self._unread


def _unescaped(escape: re.Match[str]) -> str:
    pair, unit, character = escape.groups()
    if pair:
        low = int(pair[8:], 16)
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + (int(pair[2:6], 16) - 0xD800) * 0x400 + low - 0xDC00)
        return "\ufffd" + _unescaped_unit(low)
    if unit:
        return _unescaped_unit(int(unit[2:], 16))
    return _ESCAPED.get(character, escape[0])


def _unescaped_unit(unit: int) -> str:
    return "\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)
