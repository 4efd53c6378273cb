"""The options of a chat's requests, which the user can change between two questions."""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.serving.ask import RequestDefaults

NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "reasoning_effort",
)
"""Fields of a chat request."""
_request = BodyDecoder(ChatRequest)


class ChatOptions:
    def __init__(self, defaults: RequestDefaults) -> None:
        self._defaults = defaults
        initial = {"temperature": defaults.temperature, "max_tokens": defaults.max_completion_tokens}
        self._values: dict[str, Any] = {name: value for name, value in initial.items() if value is not None}

    @property
    def max_tokens(self) -> int | None:
        return self._values.get("max_tokens")

    def set(self, name: str, text: str) -> None:
        """Raises InvalidRequest, which says what the value must be."""
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        body = {"model": "-", "messages": [{"role": "user", "content": "-"}], name: value}
        request = _request.decode(msgspec.json.encode(body))
        validate_chat(request)
        self._values[name] = getattr(request, name)

    def reset(self, name: str) -> None:
        """Leave the option to the model."""
        self._values.pop(name, None)

    def shown(self, name: str) -> str:
        value = self._values.get(name)
        return "(default)" if value is None else msgspec.json.encode(value).decode()

    def request(self, model: str, messages: list[Message]) -> ChatRequest:
        request = self._defaults.chat(model, messages)
        for name in NAMES:
            setattr(request, name, self._values.get(name))
        request.max_completion_tokens = None
        return request
