"""Reads a worker's `--endpoint-types`."""

from __future__ import annotations

from dynamo.protocols.card import ModelType

_TYPES = {"chat": ModelType.Chat, "completions": ModelType.Completions}


def parse_endpoint_types(endpoint_types_str: str) -> ModelType:
    """`chat`, `completions` or both with a comma."""
    names = [name.strip().lower() for name in endpoint_types_str.split(",") if name.strip()]
    if not names:
        raise ValueError("there is no endpoint type; give chat, completions or both with a comma")
    result = ModelType(0)
    for name in names:
        if name not in _TYPES:
            raise ValueError(f"Invalid endpoint type: '{name}'. There are chat and completions.")
        result |= _TYPES[name]
    return result
