"""Where and how a worker reports its status over HTTP: nowhere, unless DYN_SYSTEM_PORT names a port."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from dynamo.process.addresses import listening_address
from dynamo.settings import Setting, Settings, read

OFF = -1
DEFAULT_PORT = 8081
"""The port where DYN_SYSTEM_ENABLED is set without one."""
Seconds = Meta(gt=0, lt=1e9)


def _is_path(path: str) -> bool:
    return path.startswith("/") and not any(character in path for character in "{}?# ")


def _starting(text: str) -> bool:
    if text not in ("ready", "notready"):
        raise ValueError("ready or notready")
    return text == "ready"


def _endpoints(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.MsgspecError:
        raise ValueError("""a JSON list of endpoints like ["generate"]""") from None


class StatusConfig(Settings, frozen=True, kw_only=True):
    # fmt: off
    port: Annotated[int, Meta(le=65535), Setting(
        variables="DYN_SYSTEM_PORT",
        help="port to listen on; 0 takes a free one, which the log names (`status at http://…`)",
        default="-1, off")] = OFF
    host: Annotated[str, Setting(
        variables="DYN_SYSTEM_HOST",
        help="address to listen on; 0.0.0.0 is all of them: it has no keys, so only on networks of your own",
        default="127.0.0.1; in a pod 0.0.0.0")] = "127.0.0.1"
    enabled: Annotated[bool | None, Setting(
        variables="DYN_SYSTEM_ENABLED",
        help="older: `true` without a port is 8081, `false` switches off whatever the port")] = None
    health_path: Annotated[str, Setting(
        variables="DYN_SYSTEM_HEALTH_PATH", help="path of the health", valid=_is_path,
        expects="a path like /health")] = "/health"
    live_path: Annotated[str, Setting(
        variables="DYN_SYSTEM_LIVE_PATH", help="path of the liveness", valid=_is_path,
        expects="a path like /live")] = "/live"
    starts_ready: Annotated[bool, Setting(
        variables="DYN_SYSTEM_STARTING_HEALTH_STATUS", help="status before anything is served: `ready` or `notready`",
        default="notready", parse=_starting)] = False
    required: Annotated[tuple[str, ...], Setting(
        variables="DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS",
        help='JSON: endpoints that must be ready, also those not served yet, like `["generate"]`', default="[]",
        parse=_endpoints)] = ()
    probes: Annotated[bool, Setting(
        variables="DYN_HEALTH_CHECK_ENABLED", help="send test requests to idle endpoints, see below")] = False
    idle: Annotated[float, Seconds, Setting(
        variables="DYN_CANARY_WAIT_TIME", help="seconds without a good answer until an endpoint is tested")] = 10.0
    patience: Annotated[float, Seconds, Setting(
        variables="DYN_HEALTH_CHECK_REQUEST_TIMEOUT", help="seconds a tested endpoint has to begin its answer")] = 3.0
    # fmt: on

    @property
    def on(self) -> bool:
        return self.port >= 0

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: Any) -> Self:
        values = read(cls, environ, flags)
        if values.get("enabled") is False:
            values["port"] = OFF
        elif values.get("enabled"):
            values.setdefault("port", DEFAULT_PORT)
        values.setdefault("host", listening_address(environ))
        return cls(**values)
