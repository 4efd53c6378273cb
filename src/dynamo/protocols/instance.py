"""How a living instance of an endpoint is described in discovery."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

Transport = Literal["tcp", "nats", "memory"]


class Instance(Struct, kw_only=True, frozen=True):
    instance_id: int
    namespace: str
    component: str
    endpoint: str
    transport: Transport
    address: str
    """tcp: host:port; nats: subject; memory: nothing."""


def encode(instance: Instance) -> bytes:
    return msgspec.json.encode(instance)


_DECODER = msgspec.json.Decoder(Instance)


def decode(raw: bytes) -> Instance:
    """Raises msgspec.DecodeError (a ValueError) for anything that is not an instance record."""
    return _DECODER.decode(raw)
