"""Converts OpenAI message dicts to the form a particular chat template accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dynamo.protocols.errors import TemplateError

_TEXT_TYPES = {"text", "input_text", "output_text", "refusal"}
_MEDIA_TYPES = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
_PROBE = "a9Zk3probe"
_PROBE_VALUE = "b7Xm5value"
_ARGUMENTS = {"a": _PROBE_VALUE}
_NOT_AN_OBJECT = "INVALID_JSON"
"""The name under which Anthropic recommends to return arguments that cannot be parsed."""
_MAX_NESTING = 48
"""The limit of arguments, so that the whole message stays within what templates may print."""


class MessageStyle(Struct, frozen=True, kw_only=True):
    """What a template accepts where templates disagree."""

    takes_parts: bool
    """Content may be a list of parts; otherwise it must be one string."""
    only_parts: bool
    """Content must be a list of parts."""
    takes_none: bool
    """Content may be None; otherwise the template would print the word "None"."""
    arguments_as_string: bool
    """A tool call's arguments are passed as JSON text, as in the request; otherwise as an object."""

    @classmethod
    def detect(cls, render: Callable[[list[dict[str, Any]]], str]) -> MessageStyle:
        """Render probe messages and look at the results."""

        def rendered(messages: list[dict[str, Any]]) -> str | None:
            try:
                return render(messages)
            except TemplateError:
                return None

        takes_string = _PROBE in (rendered([{"role": "user", "content": _PROBE}]) or "")
        parts = rendered([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]) or ""
        takes_parts = _PROBE in parts and "'text'" not in parts and '"text"' not in parts
        as_string = _arguments_as_string(
            rendered(_call_probe(_ARGUMENTS, "")) or "", rendered(_call_probe(json.dumps(_ARGUMENTS), "")) or ""
        )
        without_content = rendered(_call_probe("{}" if as_string else {}, None))
        return cls(
            takes_parts=takes_parts,
            only_parts=takes_parts and not takes_string,
            takes_none=without_content is not None and "None" not in without_content,
            arguments_as_string=as_string,
        )


def _arguments_as_string(of_object: str, of_text: str) -> bool:
    """Decide by what the template writes for arguments given as an object and as JSON text.

    Text keeps what the model wrote, so it is preferred where both give the same JSON. A template that writes an object
    in another notation often writes text unchanged too, which is then not what the model was trained on.
    """
    if json.dumps(_ARGUMENTS) not in of_text:
        return False
    return _PROBE_VALUE not in of_object or "".join(of_object.split()) == "".join(of_text.split())


def _call_probe(arguments: Any, content: str | None) -> list[dict[str, Any]]:
    # Some templates accept only ids of nine letters and digits.
    call = {"id": "call12345", "type": "function", "function": {"name": _PROBE, "arguments": arguments}}
    return [{"role": "user", "content": _PROBE}, {"role": "assistant", "content": content, "tool_calls": [call]}]


def messages_for_template(messages: Sequence[Mapping[str, Any]], style: MessageStyle) -> list[dict[str, Any]]:
    return [_message(message, index, style) for index, message in enumerate(messages)]


def tools_for_template(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with schemas filled in where the client left them out, because templates iterate over them."""
    return [_tool(tool, index) for index, tool in enumerate(tools)]


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise TemplateError(f"tools[{index}] must be an object")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise TemplateError(f"tools[{index}].function.parameters must be an object")
    return {**tool, "function": {**function, "parameters": {"type": "object", "properties": {}, **parameters}}}


def _message(message: Any, index: int, style: MessageStyle) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"messages[{index}] must be an object")
    content = message.get("content")
    # Templates test whether a key exists, not its value: fields that are None must be absent.
    prepared = {key: value for key, value in message.items() if value is not None}
    prepared["content"] = content
    if isinstance(content, (list, tuple)):
        parts = [_part(part, f"messages[{index}].content[{at}]") for at, part in enumerate(content)]
        prepared["content"] = parts if style.takes_parts else _joined(parts, index)
    elif isinstance(content, str):
        prepared["content"] = [{"type": "text", "text": content}] if style.only_parts else content
    elif content is not None:
        raise TemplateError(f"messages[{index}].content must be text or a list of parts")
    elif not style.takes_none:
        prepared["content"] = [] if style.only_parts else ""
    if calls := prepared.pop("tool_calls", None):
        if not isinstance(calls, (list, tuple)):
            raise TemplateError(f"messages[{index}].tool_calls must be a list")
        prepared["tool_calls"] = [_call(call, style) for call in calls]
    return prepared


def _part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXT_TYPES:
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise TemplateError(f"{where}: a part of type {kind} needs a text")
        return {"type": "text", "text": text}
    if kind in _MEDIA_TYPES:
        return {"type": _MEDIA_TYPES[kind]}
    raise TemplateError(f"{where}: unknown type of content {kind!r}")


def _joined(parts: list[dict[str, Any]], index: int) -> str:
    for at, part in enumerate(parts):
        if part["type"] != "text":
            raise TemplateError(f"messages[{index}].content[{at}]: this model takes text only, not {part['type']}")
    return "\n".join(part["text"] for part in parts)


def _call(call: Any, style: MessageStyle) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if style.arguments_as_string or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _arguments(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(text: str) -> dict[str, Any]:
    """The arguments as the object that templates iterate over, whatever a model wrote.

    A call that was cut off is part of the conversation too: what is no object becomes the one value of an object.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair, escaped, cannot be rendered
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or nested_deeper(value, _MAX_NESTING):
        return {_NOT_AN_OBJECT: text}
    return value


def nested_deeper(value: Any, limit: int) -> bool:
    if limit == 0:
        return True
    for item in value if isinstance(value, (list, tuple)) else value.values():
        if isinstance(item, (dict, list)) and nested_deeper(item, limit - 1):
            return True
    return False
