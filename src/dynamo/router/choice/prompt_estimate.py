"""The approximate length of a prompt that has not been tokenized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROMPTS = ("prompt", "messages", "content", "text", "input", "token_ids")


def estimate_tokens(request: Any) -> int:
    """One token per four characters; token ids are counted."""
    tokens, parts = 0, [request]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            tokens += len(part) // 4 + 1
        elif isinstance(part, Mapping):
            parts += [part[key] for key in _PROMPTS if key in part]
        elif isinstance(part, list):
            if part and isinstance(part[0], int):
                tokens += len(part)
            else:
                parts += part
    return tokens
