"""Turns chat messages into a prompt, with the template that comes with the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamo.model.files import NAMED_TEMPLATE, read_object, read_text
from dynamo.model.messages import MessageStyle, messages_for_template, nested_deeper, tools_for_template
from dynamo.model.rendering import Renderer
from dynamo.protocols.errors import ModelError, TemplateError

_DEFAULT = "default"
_TOOL_USE = "tool_use"
_RESERVED = ("messages", "tools")
# Both engines recurse over the values they print; real schemas are far less deep.
_MAX_NESTING = 64
# Private-use characters make sure that no message contains it.
_CUT = "\ue0f5continue-here\ue0f5"


class ChatTemplate:
    """The templates of one model: a default one, and for some models another for requests with tools."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        """Raises ModelError for a template that is not Jinja."""
        if not templates:
            raise ModelError("a chat template needs at least one template")
        self.special_tokens = dict(special_tokens or {})
        self._templates = {name: _Template(source, self.special_tokens) for name, source in templates.items()}
        self._default = self._templates.get(_DEFAULT) or next(iter(self._templates.values()))

    @property
    def engine(self) -> str:
        return self._default.renderer.engine

    @property
    def sources(self) -> list[str]:
        """The text of each template."""
        return [template.renderer.source for template in self._templates.values()]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, special tokens written out: encode it with `add_special_tokens=False`.

        `continue_final_message` leaves the last message open for the model to continue, and overrides
        `add_generation_prompt`. Raises TemplateError, which is always the caller's fault.
        """
        args = dict(template_args or {})
        for name in _RESERVED:
            if name in args:
                raise TemplateError(f"template arguments must not set {name!r}")
        template = self._templates.get(_TOOL_USE, self._default) if tools else self._default
        prepared = messages_for_template(messages, template.style)
        given = {"messages": prepared, "tools": tools, "documents": documents, "arguments": args}
        if nested_deeper(given, _MAX_NESTING + 1):
            name = next(name for name, value in given.items() if value and nested_deeper(value, _MAX_NESTING))
            raise TemplateError(f"{name} must not be nested more than {_MAX_NESTING} deep")
        if continue_final_message:
            add_generation_prompt = False
            args.pop("add_generation_prompt", None)
            _mark_end(prepared)
        text = template.renderer.render(
            {
                **self.special_tokens,
                "messages": prepared,
                "tools": tools_for_template(tools) if tools else None,
                "documents": list(documents) if documents else None,
                "add_generation_prompt": add_generation_prompt,
                **args,
            }
        )
        if not continue_final_message:
            return text
        open_text, cut, _ = text.rpartition(_CUT)
        if not cut:
            raise TemplateError("the final message cannot be continued: this model's template does not show it")
        return open_text.replace(_CUT, "")


class _Template:
    """One template and the form of messages it accepts."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        defaults = {**special_tokens, "tools": None, "documents": None, "add_generation_prompt": True}
        self.renderer = Renderer(source)
        self.style = MessageStyle.detect(lambda messages: self.renderer.render({**defaults, "messages": messages}))
        self.renderer.prove([{**defaults, **trial} for trial in _trials(self.style)])


def load_template(
    files: Mapping[str, Path], special_tokens: Mapping[str, str], custom: Path | None = None
) -> ChatTemplate | None:
    """The templates in a model's files (by role), or only the custom one; None for a model that cannot chat."""
    if custom is not None:
        return ChatTemplate({_DEFAULT: read_text(custom)}, special_tokens)
    templates = _from_config(read_object(files.get("tokenizer_config")).get("chat_template"))
    if (path := files.get("chat_template")) is not None:
        if path.suffix == ".json":
            templates |= _from_config(read_object(path).get("chat_template"))
        else:
            templates[_DEFAULT] = read_text(path)
    for role, path in files.items():
        if role.startswith(NAMED_TEMPLATE):
            templates[role.removeprefix(NAMED_TEMPLATE)] = read_text(path)
    return ChatTemplate(templates, special_tokens) if templates else None


def _from_config(value: Any) -> dict[str, str]:
    match value:
        case None:
            return {}
        case str():
            return {_DEFAULT: value}
        case list() if all(isinstance(entry, dict) for entry in value):
            named = {entry.get("name"): entry.get("template") for entry in value}
        case dict():
            named = value
        case _:
            raise ModelError("chat_template must be a string, or named templates")
    if not all(isinstance(name, str) and isinstance(template, str) for name, template in named.items()):
        raise ModelError("chat_template must be a string, or named templates, each with a name and a template")
    return dict(named)


def _mark_end(messages: list[dict[str, Any]]) -> None:
    content = messages[-1].get("content") if messages else None
    match content:
        case str():
            messages[-1]["content"] = content + _CUT
        case [*parts, {"type": "text", "text": str(text)} as last]:
            messages[-1]["content"] = [*parts, {**last, "text": text + _CUT}]
        case _:
            raise TemplateError("continue_final_message needs a final message that ends in text")


def _trials(style: MessageStyle) -> Iterator[dict[str, Any]]:
    """The contexts on which both engines must agree before the fast one is used."""
    system = {"role": "system", "content": 'Be <brief> & "kind".'}
    user = {"role": "user", "content": "  What is 2+2? ‘ünï’ 你好 🎉\n"}
    reply = {"role": "assistant", "content": "It is 4."}
    parts = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}
    arguments = {"zeta": 1, "alpha": [1.5, True, None, "é<'\">"], "nested": {"y": {}, "x": []}}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_12345", "type": "function", "function": {"name": "look", "arguments": json.dumps(arguments)}}
        ],
    }
    answer = {"role": "tool", "tool_call_id": "call_12345", "name": "look", "content": '{"found": 1}'}
    tool = {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look <up> “things”",
            "parameters": {
                "type": "object",
                "properties": {
                    "q": {"type": "string", "description": "what", "enum": ["b", "a"]},
                    "n": {"type": "integer", "default": 3},
                },
                "required": ["q"],
            },
        },
    }
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "reasoning_content": "hm"}
    called = {**call, "content": ""}
    conversations: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = [
        ([user], None),
        ([system, user], None),
        ([user, reply, user], None),
        ([system, user, thought, user], None),
        ([parts], None),
        ([image], None),
        ([system, user], [tool]),
        ([user, call, answer], [tool, tool]),
        ([system, user, called, answer, answer, reply, user], [tool]),
        ([], None),
    ]
    extras: list[dict[str, Any]] = [
        {},
        {"add_generation_prompt": False},
        {"enable_thinking": False, "reasoning_effort": "low"},
    ]
    for messages, tools in conversations:
        try:
            prepared = messages_for_template(messages, style)
        except TemplateError:
            continue
        yield from ({"messages": prepared, "tools": tools, **extra} for extra in extras)
