"""The frontend's settings: flag, else environment, else default; read once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.frontend.connection import ConnectionLimits
from dynamo.frontend.measure.metrics import clean_prefix
from dynamo.router import RouterConfig
from dynamo.router.config import SETTINGS
from dynamo.runtime.logging import truthy
from dynamo.runtime.names import DEFAULT_NAMESPACE
from dynamo.serving.request_template import RequestTemplate

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class FrontendConfig(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    tls_cert_path: Path | None = None
    tls_key_path: Path | None = None
    api_keys: tuple[str, ...] = ()
    protect_metrics: bool = False
    cors_allow_origins: tuple[str, ...] = ()
    router: RouterConfig = RouterConfig()
    namespace: str | None = None
    namespace_prefix: str | None = None
    body_limit_mb: int = 45
    header_timeout: float = 15.0
    body_timeout: float = 60.0
    idle_timeout: float = 75.0
    stall_timeout: float = 60.0
    max_concurrent_requests: int = 0
    overload_status_code: int = 503
    ignore_unknown_fields: bool = False
    sse_keep_alive_secs: float = 0.0
    graceful_shutdown_timeout: float = 30.0
    metrics_prefix: str = "dynamo_frontend"
    open_files: int = 65536
    request_template: RequestTemplate | None = None

    def __post_init__(self) -> None:
        if not self.host or any(character.isspace() for character in self.host):
            raise ValueError(f"--http-host must be an address or a host's name, not '{self.host}'")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--http-port must be 0..65535, not {self.port}")
        if not 1 <= self.workers <= 256:
            raise ValueError(f"--http-workers must be 1..256, not {self.workers}")
        if (self.tls_cert_path is None) != (self.tls_key_path is None):
            raise ValueError("--tls-cert-path and --tls-key-path need each other: give both or neither")
        if any(not key.strip() or not key.isascii() or not key.isprintable() for key in self.api_keys):
            raise ValueError("--api-key must be printable ASCII and not empty")
        if self.body_limit_mb < 1:
            raise ValueError(f"DYN_HTTP_BODY_LIMIT_MB must be at least 1, not {self.body_limit_mb}")
        if self.max_concurrent_requests < 0:
            raise ValueError(f"--max-concurrent-requests must be 0 or more, not {self.max_concurrent_requests}")
        if not 400 <= self.overload_status_code <= 599:
            raise ValueError(f"--overload-status-code must be 400..599, not {self.overload_status_code}")
        for origin in self.cors_allow_origins:
            if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.endswith("/")):
                raise ValueError(f"--cors-allow-origin must be * or like https://example.org, not '{origin}'")
        for name in (
            "header_timeout", "body_timeout", "idle_timeout", "stall_timeout", "sse_keep_alive_secs",
            "graceful_shutdown_timeout",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < 1e9:
                raise ValueError(f"{_FLAGS[name]} must be a number of seconds, not {getattr(self, name)}")

    @property
    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(idle=self.idle_timeout, header=self.header_timeout, stall=self.stall_timeout)

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")

    def serves_namespace(self, namespace: str) -> bool:
        """A prefix beats an exact name; the default namespace, like none, stands for all."""
        if self.namespace_prefix:
            return namespace.startswith(self.namespace_prefix)
        return self.namespace in (None, "", DEFAULT_NAMESPACE, namespace)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> FrontendConfig:
        """`flags` that are None were not given; those of the router go to `RouterConfig`."""
        routing = {name: flags.pop(name) for name in [setting.name for setting in SETTINGS] if name in flags}
        values: dict[str, Any] = {"router": RouterConfig.from_env(environ, **routing)}
        for field, name, read in _ENVIRONMENT:
            text = environ.get(name, "").strip()
            if text and flags.get(field) is None:
                try:
                    values[field] = read(text)
                except ValueError:
                    raise ValueError(f"{name} must be a number, not '{text}'") from None
        values |= {field: value for field, value in flags.items() if value is not None}
        if "metrics_prefix" in values:
            values["metrics_prefix"] = clean_prefix(values["metrics_prefix"])
        return cls(**values)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.replace(",", " ").split() if part)


def _milliseconds(text: str) -> float:
    return float(text) / 1000


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


_ENVIRONMENT: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("host", "DYN_HTTP_HOST", str),
    ("port", "DYN_HTTP_PORT", int),
    ("workers", "DYN_HTTP_WORKERS", int),
    ("tls_cert_path", "DYN_TLS_CERT_PATH", Path),
    ("tls_key_path", "DYN_TLS_KEY_PATH", Path),
    ("api_keys", "DYN_API_KEY", _list),
    ("protect_metrics", "DYN_PROTECT_METRICS", truthy),
    ("cors_allow_origins", "DYN_HTTP_CORS_ALLOW_ORIGIN", _list),
    ("namespace", "DYN_NAMESPACE", str),
    ("namespace_prefix", "DYN_NAMESPACE_PREFIX", str),
    ("body_limit_mb", "DYN_HTTP_BODY_LIMIT_MB", int),
    ("header_timeout", "DYN_HTTP_HEADER_TIMEOUT_SECS", _seconds),
    ("body_timeout", "DYN_HTTP_BODY_TIMEOUT_SECS", _seconds),
    ("idle_timeout", "DYN_HTTP_IDLE_TIMEOUT_SECS", _seconds),
    ("stall_timeout", "DYN_HTTP_STALL_TIMEOUT_SECS", _seconds),
    ("max_concurrent_requests", "DYN_HTTP_MAX_CONCURRENT_REQUESTS", int),
    ("overload_status_code", "DYN_HTTP_OVERLOAD_STATUS_CODE", int),
    ("ignore_unknown_fields", "DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS", truthy),
    ("sse_keep_alive_secs", "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS", _milliseconds),
    ("graceful_shutdown_timeout", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", _seconds),
    ("metrics_prefix", "DYN_METRICS_PREFIX", str),
    ("open_files", "DYN_FRONTEND_FD_LIMIT_TARGET", int),
)
_FLAGS = {
    "header_timeout": "--http-header-timeout-secs",
    "body_timeout": "--http-body-timeout-secs",
    "idle_timeout": "--http-idle-timeout-secs",
    "stall_timeout": "--http-stall-timeout-secs",
    "sse_keep_alive_secs": "--sse-keep-alive-secs",
    "graceful_shutdown_timeout": "--graceful-shutdown-timeout-secs",
}
