"""The interface of discovery: a small key-value store with leases and prefix watches.

Keys are `/`-separated paths of printable ASCII (`v1/instances/ns/comp/ep/1f…`), values are bytes.
Every record belongs to the one lease of its `Discovery`: it disappears, for everyone, when the process that put it
dies, and is put back after an outage of the store. `put` therefore never fails for an outage that may end.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from dynamo.protocols.errors import StartError


class Put(Struct, frozen=True):
    """A record appeared or changed."""

    key: str
    value: bytes


class Delete(Struct, frozen=True):
    """A record is gone."""

    key: str


class Synced(Struct, frozen=True):
    """Every record that was in the store when the watch began has been reported."""


Change = Put | Delete | Synced


class Discovery(Protocol):
    """One process's view of who is alive."""

    async def start(self) -> None:
        """Reach the store and take the lease; raises `DiscoveryError` with the fix in its message when that fails."""

    async def put(self, key: str, value: bytes) -> None:
        """Write a record under this process's lease, and keep it there until `delete` or `close`."""

    async def delete(self, key: str) -> None:
        """Remove a record of this process, if it exists."""

    async def get_prefix(self, prefix: str) -> dict[str, bytes]:
        """All live records whose key starts with `prefix`; raises `DiscoveryError` during an outage."""

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """First every live record as Put, then Synced, then changes as they happen, until `close`.

        Quick changes of one key may be reported as one, and a Put of the value last reported is not repeated.
        During an outage of the store nothing is reported: the last known view stays in use. After it only the
        differences are reported. Closing the generator (or cancelling its consumer) ends the watch.
        """

    async def close(self) -> None:
        """Remove all records of this process, give the lease back and end its watches."""


class DiscoveryError(StartError):
    """The store cannot be used; the message names what was tried and the fix."""


_KEY = re.compile(r"[ -~]+")


def check_key(key: str) -> None:
    """Raise ValueError for a key that not every backend can store."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"a discovery key is one or more printable ASCII characters, not {key!r}")
