"""What a worker sends itself to see whether its engine still answers (`health_check_payload`)."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

HEALTH_CHECK_KEY = "_HEALTH_CHECK"
"""A field of the payload by which a handler can tell such a request from others."""


def load_health_check_from_env(env_var: str = "DYN_HEALTH_CHECK_PAYLOAD") -> dict[str, Any] | None:
    """The JSON object in the variable, or in the file it names with `@`; one that cannot be used is logged: None."""
    value = os.environ.get(env_var)
    if not value:
        return None
    try:
        payload = json.loads(Path(value[1:]).read_text() if value.startswith("@") else value)
    except (OSError, ValueError) as error:
        log.warning("ignoring %s: %s", env_var, error)
        return None
    if not isinstance(payload, dict):
        log.warning("ignoring %s: it must be a JSON object, not %s", env_var, type(payload).__name__)
        return None
    return payload


class HealthCheckPayload:
    """A subclass sets `default_payload` before it calls `super().__init__()`; the environment may replace it."""

    default_payload: dict[str, Any]

    def __init__(self) -> None:
        if not hasattr(self, "default_payload"):
            raise NotImplementedError(f"{type(self).__name__} must set default_payload first")
        self._payload: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        if self._payload is None:
            self._payload = load_health_check_from_env() or self.default_payload
        return self._payload

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()!r})"
