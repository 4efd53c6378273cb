"""What an operator fills in where a request says nothing."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dynamo.protocols.openai_fields import MaxTokens, Temperature


class RequestTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1)] | None = None
    temperature: Temperature | None = None
    max_completion_tokens: MaxTokens | None = None


_LIMITS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""What each route calls the limit of an answer. One that is not here gives no answer of the model's."""


def fill_body(template: RequestTemplate, body: bytes, path: str) -> bytes:
    """The body with what it lacks. One that is no JSON object stays as it is, for the decoder to name its mistake."""
    try:
        asked = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(asked, dict):
        return body
    if template.model is not None and not asked.get("model"):
        asked["model"] = template.model
    names = _LIMITS.get(path)
    if names is None:
        return msgspec.json.encode(asked)
    if template.temperature is not None and asked.get("temperature") is None:
        asked["temperature"] = template.temperature
    if template.max_completion_tokens is not None and not any(asked.get(name) for name in names):
        asked[names[0]] = template.max_completion_tokens
    return msgspec.json.encode(asked)
