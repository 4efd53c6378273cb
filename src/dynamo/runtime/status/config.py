"""Where and how a worker tells its status: nowhere, unless DYN_SYSTEM_PORT says so."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from dynamo.runtime.logging import truthy

OFF = -1
DEFAULT_PORT = 8081
"""Of DYN_SYSTEM_ENABLED without a port."""


class StatusConfig(Struct, frozen=True, kw_only=True):
    port: int = OFF
    host: str = "0.0.0.0"
    health_path: str = "/health"
    live_path: str = "/live"
    starts_ready: bool = False
    """Before anything is served."""
    required: tuple[str, ...] = ()
    """Endpoints that must be ready, also those that are not there yet."""
    probes: bool = False
    """Endpoints that have a payload for it are tried when nothing comes from them."""
    idle: float = 10.0
    """Seconds without a good answer until one is tried."""
    patience: float = 3.0
    """Seconds it has for the first of its answer."""

    @property
    def on(self) -> bool:
        return self.port >= 0

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> StatusConfig:
        values = {name: text.strip() for name, text in environ.items() if name.startswith("DYN_") and text.strip()}
        return cls(
            port=_port(values),
            host=values.get("DYN_SYSTEM_HOST", "0.0.0.0"),
            health_path=_path(values, "DYN_SYSTEM_HEALTH_PATH", "/health"),
            live_path=_path(values, "DYN_SYSTEM_LIVE_PATH", "/live"),
            starts_ready=_starting(values.get("DYN_SYSTEM_STARTING_HEALTH_STATUS", "notready")),
            required=_names(values.get("DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS", "[]")),
            probes=truthy(values.get("DYN_HEALTH_CHECK_ENABLED", "")),
            idle=_seconds(values, "DYN_CANARY_WAIT_TIME", 10.0),
            patience=_seconds(values, "DYN_HEALTH_CHECK_REQUEST_TIMEOUT", 3.0),
        )


def _port(values: Mapping[str, str]) -> int:
    enabled = values.get("DYN_SYSTEM_ENABLED")
    text = values.get("DYN_SYSTEM_PORT", str(OFF))
    try:
        port = int(text)
    except ValueError:
        port = 65536
    if port > 65535:
        raise ValueError(f"DYN_SYSTEM_PORT must be a port, 0 for a free one or -1 for none, not '{text}'")
    if enabled is not None and not truthy(enabled):
        return OFF
    return DEFAULT_PORT if enabled is not None and "DYN_SYSTEM_PORT" not in values else port


def _path(values: Mapping[str, str], name: str, default: str) -> str:
    path = values.get(name, default)
    if not path.startswith("/") or any(character in path for character in "{}?# "):
        raise ValueError(f"{name} must be a path like {default}, not '{path}'")
    return path


def _starting(text: str) -> bool:
    if text not in ("ready", "notready"):
        raise ValueError(f"DYN_SYSTEM_STARTING_HEALTH_STATUS must be ready or notready, not '{text}'")
    return text == "ready"


def _names(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.MsgspecError:
        name = "DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS"
        raise ValueError(f"""{name} must be a JSON list of endpoints like ["generate"], not '{text}'""") from None


def _seconds(values: Mapping[str, str], name: str, default: float) -> float:
    text = values.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{name} must be a number of seconds, not '{text}'")
    return seconds
