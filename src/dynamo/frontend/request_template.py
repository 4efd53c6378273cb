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


def fill_body(template: RequestTemplate, body: bytes) -> bytes:
    """The body with what it lacks. One that is no JSON object stays as it is, for the decoder to name its mistake."""
    try:
        asked = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(asked, dict):
        return body
    if template.model is not None and not asked.get("model"):
        asked["model"] = template.model
    if template.temperature is not None and asked.get("temperature") is None:
        asked["temperature"] = template.temperature
    limit = "max_completion_tokens" if "messages" in asked else "max_tokens"
    if template.max_completion_tokens is not None and not (
        asked.get("max_completion_tokens") or asked.get("max_tokens")
    ):
        asked[limit] = template.max_completion_tokens
    return msgspec.json.encode(asked)
