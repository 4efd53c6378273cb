"""How the processes of a deployment reach each other. `dynamo.runtime` has the behaviour."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from dynamo.settings.setting import Setting
from dynamo.settings.table import Settings

_MEM = (("mem", "memory"),)


class NetworkSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "network"

    # fmt: off
    discovery_backend: Annotated[Literal["memory", "file", "etcd"] | None, Setting(
        "--discovery-backend", "DYN_DISCOVERY_BACKEND", "where processes find each other", "NAME", default="file",
        synonyms=_MEM)] = None
    request_plane: Annotated[Literal["memory", "tcp", "nats"] | None, Setting(
        "--request-plane", "DYN_REQUEST_PLANE", "how requests travel", "NAME", default="tcp", synonyms=_MEM)] = None
    event_plane: Annotated[Literal["memory", "zmq", "nats"] | None, Setting(
        "--event-plane", "DYN_EVENT_PLANE", "how KV events and load travel", "NAME", default="zmq",
        synonyms=_MEM)] = None
    graceful_shutdown_timeout: Annotated[float, Meta(ge=0, lt=1e9), Setting(
        variables="DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT",
        help="seconds a worker's running requests have after SIGTERM")] = 30.0
    # fmt: on
