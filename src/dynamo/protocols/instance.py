"""The discovery record of one live instance of an endpoint."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Transport = Literal["tcp", "nats", "memory"]


class Instance(Struct, kw_only=True, frozen=True):
    instance_id: int
    namespace: str
    component: str
    endpoint: str
    transport: Transport
    address: str
    """tcp: host:port; nats: subject; memory: empty."""
