"""The answers of etcd's HTTP gateway: protobuf's JSON form, so 64-bit numbers are strings and bytes are base64.

Decoded with `strict=False`, which reads those strings as numbers; absent fields are zero.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class EtcdHeader(Struct, frozen=True):
    cluster_id: str = ""
    revision: int = 0


class KeyValue(Struct, frozen=True):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0


class EtcdReply(Struct, frozen=True):
    """Any answer of which only the header matters."""

    header: EtcdHeader = EtcdHeader()


class RangeAnswer(Struct, frozen=True):
    header: EtcdHeader = EtcdHeader()
    kvs: tuple[KeyValue, ...] = ()
    count: int = 0


class LeaseAnswer(Struct, frozen=True):
    """A grant, or one beat of keep-alive: a TTL of zero says that the lease is gone."""

    header: EtcdHeader = EtcdHeader()
    ID: int = 0
    TTL: int = 0


class KeepAliveAnswer(Struct, frozen=True):
    result: LeaseAnswer


class AuthAnswer(Struct, frozen=True):
    token: str


class Event(Struct, frozen=True):
    type: str = "PUT"
    kv: KeyValue = KeyValue()


class WatchAnswer(Struct, frozen=True):
    header: EtcdHeader = EtcdHeader()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[Event, ...] = ()


class WatchLine(Struct, frozen=True):
    """One line of a watch: an answer, or the error that ends it."""

    result: WatchAnswer | None = None
    error: Any = None


class EtcdErrorReply(Struct, frozen=True):
    message: str
    code: int = 2


def range_end(prefix: bytes) -> bytes:
    """The first key after all that start with `prefix`; etcd reads a zero byte as "to the end"."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"
