"""Server-sent events that carry their name beside their data."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import TypeAdapter


def named_events(raw: bytes, official: TypeAdapter[Any]) -> list[dict[str, Any]]:
    """Each event validated by the official types; its name in the stream must be its type."""
    found = []
    for block in raw.decode().removesuffix("\n\n").split("\n\n"):
        event, data = block.split("\n")
        parsed = msgspec.json.decode(data.removeprefix("data: "))
        assert event == f"event: {parsed['type']}"
        official.validate_python(parsed)
        found.append(parsed)
    return found
