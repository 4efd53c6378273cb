"""What a request's headers tell us, and which of it we believe."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from multidict import CIMultiDict, CIMultiDictProxy

from dynamo.protocols.errors import HttpError

Headers = CIMultiDictProxy[str] | CIMultiDict[str]

_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_METADATA = "x-dynamo-meta-"
MAX_METADATA = 64
MAX_METADATA_BYTES = 64 * 1024


def request_id(headers: Headers) -> str:
    """The client's own `x-request-id`, if it can stand in a log and a header; a new one otherwise."""
    told = headers.get("x-request-id")
    return told if told and _PRINTABLE.fullmatch(told) else str(uuid.uuid4())


def context_id(headers: Headers, request_id: str) -> str:
    """The id workers know the request by: a UUID, which the client may choose.

    An `x-request-id` of our own making is one; a client's may be anything, and may come twice.
    """
    for name in ("request-id", "x-dynamo-request-id"):
        told = headers.get(name)
        if told:
            try:
                return str(uuid.UUID(told))
            except ValueError:
                continue
    return str(uuid.uuid4()) if headers.get("x-request-id") else request_id


def traceparent(headers: Headers) -> str | None:
    told = headers.get("traceparent", "")
    return told if _TRACEPARENT.fullmatch(told) else None


def metadata(headers: Headers) -> dict[str, str]:
    """`x-dynamo-meta-KEY: value`, for the worker's handler; credentials do not travel this way."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if name[: len(_METADATA)].lower() != _METADATA:
            continue
        key = name[len(_METADATA) :].lower()
        if key and key not in found and "authorization" not in key and not value.lower().startswith("bearer "):
            found[key] = value
    if len(found) > MAX_METADATA or _size(found) > MAX_METADATA_BYTES:
        limits = f"at most {MAX_METADATA} of them, {MAX_METADATA_BYTES} bytes in all"
        raise HttpError(431, f"too many {_METADATA}* headers: {limits}")
    return found


def _size(fields: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in fields.items())
