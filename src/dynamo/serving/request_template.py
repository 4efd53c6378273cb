"""Defaults that an operator sets for fields that a request leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dynamo.protocols.fields import MaxTokens, Temperature


class RequestTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1)] | None = None
    temperature: Temperature | None = None
    max_completion_tokens: MaxTokens | None = None


def fill_body(
    template: RequestTemplate,
    body: bytes | bytearray,
    limits: Sequence[str],
    shortened: bytes | bytearray | None = None,
) -> bytes | bytearray:
    """The body with the missing fields filled in. One that is not a JSON object is left for the decoder to reject.

    `limits` are the fields that limit the answer, the first is filled in; without any, only `model` is. A bytearray is
    filled in place where that is possible. `shortened` is the body with shorter strings, if it is long.
    """
    fields = _object(body if shortened is None else shortened)
    if fields is None or not (missing := _missing(template, fields, limits)):
        return body
    if not missing.keys().isdisjoint(fields):
        # There, but empty: a field that is written twice would be rejected for what stands first.
        return msgspec.json.encode({**(_object(body) or {}), **missing})
    filled = body if isinstance(body, bytearray) else bytearray(body)
    filled[filled.rindex(b"}") :] = (b"," if fields else b"") + msgspec.json.encode(missing)[1:]
    return filled


def _object(body: bytes | bytearray) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _missing(template: RequestTemplate, fields: dict[str, Any], limits: Sequence[str]) -> dict[str, Any]:
    missing: dict[str, Any] = {}
    if template.model is not None and not fields.get("model"):
        missing["model"] = template.model
    if not limits:
        return missing
    if template.temperature is not None and fields.get("temperature") is None:
        missing["temperature"] = template.temperature
    if template.max_completion_tokens is not None and not any(fields.get(name) for name in limits):
        missing[limits[0]] = template.max_completion_tokens
    return missing
