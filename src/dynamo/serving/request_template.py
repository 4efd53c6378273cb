"""Defaults that an operator sets for fields that a request leaves out."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dynamo.protocols.anthropic import MessagesRequest
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.protocols.openai_fields import MaxTokens, Temperature
from dynamo.protocols.openai_responses import ResponsesRequest


class RequestTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1)] | None = None
    temperature: Temperature | None = None
    max_completion_tokens: MaxTokens | None = None


_LIMITS: dict[type, tuple[str, ...]] = {
    ChatRequest: ("max_completion_tokens", "max_tokens"),
    CompletionRequest: ("max_tokens",),
    ResponsesRequest: ("max_output_tokens",),
    MessagesRequest: ("max_tokens",),
}
"""The field of each request that limits its answer. Other requests generate nothing: only `model` is filled in."""


def fill_body(template: RequestTemplate, body: bytes, kind: type) -> bytes:
    """The body with the missing fields filled in. One that is not a JSON object is left for the decoder to refuse."""
    try:
        fields = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(fields, dict):
        return body
    if template.model is not None and not fields.get("model"):
        fields["model"] = template.model
    names = _LIMITS.get(kind)
    if names is None:
        return msgspec.json.encode(fields)
    if template.temperature is not None and fields.get("temperature") is None:
        fields["temperature"] = template.temperature
    if template.max_completion_tokens is not None and not any(fields.get(name) for name in names):
        fields[names[0]] = template.max_completion_tokens
    return msgspec.json.encode(fields)
