"""The discovery record of one live instance of an endpoint."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from dynamo.protocols.worker_name import worker_name

Transport = Literal["tcp", "nats", "memory"]


class Instance(Struct, kw_only=True, frozen=True):
    instance_id: int
    namespace: str
    component: str
    endpoint: str
    transport: Transport
    address: str
    """tcp: host:port; nats: subject; memory: empty."""
    device_type: Literal["cpu", "cuda"] | None = None
    """What the process may compute on, where its environment says so."""
    version: str | None = None
    """The version of Dynamo in that process; None where it did not say."""
    host: str | None = None
    """The name of the machine or pod it runs on."""
    pid: int | None = None
    started: float | None = None
    """When the process was started, in seconds since 1970."""
    gpus: str | None = None
    """The GPUs that its environment gives it."""
    engine: str | None = None
    ready: bool = True
    """False while the endpoint does not answer its own health checks."""
    draining: bool = False
    """An administrator has taken it out: it finishes what runs there and gets no new requests."""
    health_check: Any = None
    """A request that the endpoint answers while it works; None where it named none."""

    @property
    def name(self) -> str:
        """The name of the worker, for people."""
        return worker_name(self.instance_id)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.component}/{self.endpoint}/{self.instance_id}"


class ListedTransport(str):
    """A transport by its name, as a client's `instances()` lists it, with ai-dynamo's `kind` and `address`."""

    address: str

    @property
    def kind(self) -> str:
        return "nats_tcp" if self == "nats" else str(self)

    @classmethod
    def of(cls, instance: Instance) -> ListedTransport:
        listed = cls(instance.transport)
        listed.address = instance.address
        return listed
