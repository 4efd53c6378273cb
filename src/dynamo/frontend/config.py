"""The frontend's settings: flag, else environment, else default; read once."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dynamo.frontend.request_template import RequestTemplate
from dynamo.router import RouterConfig
from dynamo.router.config import SETTINGS


class FrontendConfig(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8080
    router: RouterConfig = RouterConfig()
    body_limit_mb: int = 45
    ignore_unknown_fields: bool = False
    sse_keep_alive_secs: float = 0.0
    graceful_shutdown_timeout: float = 30.0
    request_template: RequestTemplate | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--http-port must be 0..65535, not {self.port}")
        if self.body_limit_mb < 1:
            raise ValueError(f"DYN_HTTP_BODY_LIMIT_MB must be at least 1, not {self.body_limit_mb}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> FrontendConfig:
        """`flags` that are None were not given; those of the router go to `RouterConfig`."""
        routing = {name: flags.pop(name) for name in [setting.name for setting in SETTINGS] if name in flags}
        values: dict[str, object] = {"router": RouterConfig.from_env(environ, **routing)}
        for field, name, kind in (
            ("host", "DYN_HTTP_HOST", str),
            ("port", "DYN_HTTP_PORT", int),
            ("body_limit_mb", "DYN_HTTP_BODY_LIMIT_MB", int),
            ("graceful_shutdown_timeout", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", float),
        ):
            text = environ.get(name)
            if text:
                try:
                    values[field] = kind(text)
                except ValueError:
                    raise ValueError(f"{name} must be a number, not '{text}'") from None
        values |= {field: value for field, value in flags.items() if value is not None}
        return cls(**values)  # type: ignore[arg-type]
