"""Reads a request's headers, without trusting their values."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from typing import Any

from msgspec import structs
from multidict import CIMultiDict, CIMultiDictProxy

from dynamo.protocols.errors import HttpError
from dynamo.protocols.fields import AgentHints, NvExt

Headers = CIMultiDictProxy[str] | CIMultiDict[str]

_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_METADATA = "x-dynamo-meta-"
MAX_METADATA = 64
MAX_METADATA_BYTES = 64 * 1024
_INSTANCE = ("x-dynamo-worker-instance-id", "x-worker-instance-id")
_RANK = ("x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank")
_PREFILL_INSTANCE = ("x-dynamo-prefill-instance-id",)
_PREFILL_RANK = ("x-dynamo-prefill-dp-rank",)
_PRIORITY = ("x-dynamo-request-priority",)
_STRICT_PRIORITY = ("x-dynamo-request-strict-priority",)
_TENANT = "x-tenant-id"
_NVEXT = frozenset((*_INSTANCE, *_RANK, *_PREFILL_INSTANCE, *_PREFILL_RANK, *_PRIORITY, *_STRICT_PRIORITY, _TENANT))
WARNING = "x-dynamo-warning"
MOST_NAMED = 20
_VARIANTS = "89ab"
UNSET_RANK = 4294967295


def request_id(headers: Headers) -> str:
    """The client's `x-request-id` if it is safe to write to a log and a header, else a new one."""
    sent = headers.get("x-request-id")
    return sent if sent and _PRINTABLE.fullmatch(sent) else new_id()


def new_id() -> str:
    """A random UUID, made in less than half of the time that the library takes."""
    digits = os.urandom(16).hex()
    variant = _VARIANTS[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def context_id(headers: Headers, request_id: str) -> str:
    """The id workers know the request by: a UUID, which the client may choose.

    An `x-request-id` generated here is one; a client's may be any text, and need not be unique.
    """
    for name in ("request-id", "x-dynamo-request-id"):
        sent = headers.get(name)
        if sent:
            try:
                return str(uuid.UUID(sent))
            except ValueError:
                continue
    return str(uuid.uuid4()) if headers.get("x-request-id") else request_id


def ignored(what: str, names: Sequence[str]) -> str:
    """A warning that parts of a request were left out; names are shortened to what a header can hold."""
    listed = ", ".join(ascii(name[:100])[1:-1] for name in names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"ignored {what}: {listed}{more}"


def traceparent(headers: Headers) -> str | None:
    sent = headers.get("traceparent", "")
    return sent if _TRACEPARENT.fullmatch(sent) else None


def metadata(headers: Headers) -> dict[str, str]:
    """`x-dynamo-meta-KEY: value`, for the worker's handler; credentials do not travel this way."""
    if _METADATA not in "\n".join(headers).lower():
        return {}
    found: dict[str, str] = {}
    for name, value in headers.items():
        if name[: len(_METADATA)].lower() != _METADATA:
            continue
        key = name[len(_METADATA) :].lower()
        if key and key not in found and "authorization" not in key and not value.lower().startswith("bearer "):
            found[key] = value
    size = sum(len(key) + len(value) for key, value in found.items())
    if len(found) > MAX_METADATA or size > MAX_METADATA_BYTES:
        limits = f"at most {MAX_METADATA} of them, {MAX_METADATA_BYTES} bytes in all"
        raise HttpError(431, f"too many {_METADATA}* headers: {limits}")
    return found


def nvext(headers: Headers, body: NvExt | None) -> NvExt | None:
    """The body's `nvext`, overridden by what was sent as headers; malformed headers are ignored."""
    if _NVEXT.isdisjoint(map(str.lower, headers)):
        return body
    fields: dict[str, Any] = {
        "backend_instance_id": _number(headers, _INSTANCE, 0, 2**64 - 1),
        "dp_rank": _number(headers, _RANK, 0, UNSET_RANK - 1),
        "prefill_worker_id": _number(headers, _PREFILL_INSTANCE, 0, 2**64 - 1),
        "prefill_dp_rank": _number(headers, _PREFILL_RANK, 0, UNSET_RANK - 1),
        "cache_salt": headers.get(_TENANT) or None,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    hints = {
        "priority": _number(headers, _PRIORITY, -(2**31), 2**31 - 1),
        "strict_priority": _number(headers, _STRICT_PRIORITY, 0, 2**32 - 1),
    }
    hints = {name: value for name, value in hints.items() if value is not None}
    if not fields and not hints:
        return body
    body = body or NvExt()
    if hints:
        fields["agent_hints"] = structs.replace(body.agent_hints or AgentHints(), **hints)
    return structs.replace(body, **fields)


def _number(headers: Headers, names: Sequence[str], low: int, high: int) -> int | None:
    for name in names:
        text = headers.get(name, "")
        if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
    return None


def is_json(content_type: str) -> bool:
    return content_type == "application/json" or (
        content_type.startswith("application/") and content_type.endswith("+json")
    )
