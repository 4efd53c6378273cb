"""KV events and load, from workers to routers: in memory, over ZMQ, or through NATS."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dynamo.runtime.discovery.base import Discovery
from dynamo.runtime.events.base import Callback, EventPlane, EventPlaneError, Subscription
from dynamo.runtime.events.memory import MemoryBus, MemoryEventPlane
from dynamo.runtime.events.nats import NatsEventPlane
from dynamo.runtime.events.zmq import ZmqEventPlane
from dynamo.runtime.nats.connection import NatsConnection

__all__ = [
    "Callback",
    "EventPlane",
    "EventPlaneConfig",
    "EventPlaneError",
    "EventPlaneKind",
    "MemoryBus",
    "MemoryEventPlane",
    "NatsEventPlane",
    "Subscription",
    "ZmqEventPlane",
    "event_plane",
]

EventPlaneKind = Literal["memory", "zmq", "nats"]


class EventPlaneConfig(Struct, frozen=True):
    kind: EventPlaneKind = "zmq"
    host: str = "127.0.0.1"
    """Where ZMQ publishers listen; routers on other machines need an address they reach (0.0.0.0 finds one)."""
    peers: tuple[str, ...] = ()
    """Hosts that everyone reaches: the way to them decides which address a wildcard `host` is known by."""
    token: str | None = None
    """With it, ZMQ encrypts and only processes that know it can publish and subscribe."""


def event_plane(
    config: EventPlaneConfig,
    discovery: Discovery,
    *,
    nats: NatsConnection | None = None,
    bus: MemoryBus | None = None,
) -> EventPlane:
    """The plane `config` asks for, not yet started; `nats` is needed for nats, `bus` joins memory planes."""
    match config.kind:
        case "memory":
            return MemoryEventPlane(bus or MemoryBus())
        case "zmq":
            return ZmqEventPlane(discovery, config.host, config.peers, config.token)
        case "nats":
            if nats is None:
                raise EventPlaneError("the nats event plane needs the process's NATS connection")
            return NatsEventPlane(nats)
