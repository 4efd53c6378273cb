"""Records by kind and id: in the memory of one process, or in a SQLite file that several processes share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

Change = Callable[[bytes], bytes]
"""From the old body to the new one. Called in a transaction, and perhaps in another thread."""


class Limits(Struct, frozen=True):
    """When a kind holds more than this, the records whose last write is oldest are dropped."""

    count: int
    size: int
    """In bytes, the bodies of all records together."""


class Records(Protocol):
    async def put(self, kind: str, id: str, body: bytes) -> None:
        """Add a record or replace it."""

    async def get(self, kind: str, id: str) -> bytes | None: ...

    async def update(self, kind: str, id: str, change: Change) -> bytes | None:
        """Replace the body in one step, safe against other processes; returns the new one, None without a record."""

    async def delete(self, kind: str, id: str) -> bool:
        """Returns whether there was such a record."""

    async def all(self, kind: str, prefix: str = "") -> list[bytes]:
        """The records whose ids begin with the prefix, in the order of their ids."""

    async def close(self) -> None: ...


class OwnedRecords:
    """The records of one owner, who neither sees nor changes those of others; limits hold for all owners together."""

    def __init__(self, records: Records, owner: str) -> None:
        self._records = records
        self._prefix = f"{owner}/"

    async def put(self, kind: str, id: str, body: bytes) -> None:
        await self._records.put(kind, self._prefix + id, body)

    async def get(self, kind: str, id: str) -> bytes | None:
        return await self._records.get(kind, self._prefix + id)

    async def update(self, kind: str, id: str, change: Change) -> bytes | None:
        return await self._records.update(kind, self._prefix + id, change)

    async def delete(self, kind: str, id: str) -> bool:
        return await self._records.delete(kind, self._prefix + id)

    async def all(self, kind: str, prefix: str = "") -> list[bytes]:
        return await self._records.all(kind, self._prefix + prefix)

    async def close(self) -> None:
        """Does nothing: the records below belong to all owners."""


class MemoryRecords:
    """Lives as long as its process."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = limits
        self._kinds: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        """Within a kind, the record written last is last."""
        self._sizes: defaultdict[str, int] = defaultdict(int)

    async def put(self, kind: str, id: str, body: bytes) -> None:
        self._put(kind, id, body)

    async def get(self, kind: str, id: str) -> bytes | None:
        return self._kinds[kind].get(id)

    async def update(self, kind: str, id: str, change: Change) -> bytes | None:
        body = self._kinds[kind].get(id)
        if body is None:
            return None
        body = change(body)
        self._put(kind, id, body)
        return body

    async def delete(self, kind: str, id: str) -> bool:
        return self._remove(kind, id)

    async def all(self, kind: str, prefix: str = "") -> list[bytes]:
        return [body for id, body in sorted(self._kinds[kind].items()) if id.startswith(prefix)]

    async def close(self) -> None:
        self._kinds.clear()
        self._sizes.clear()

    def _put(self, kind: str, id: str, body: bytes) -> None:
        self._remove(kind, id)
        records = self._kinds[kind]
        records[id] = body
        self._sizes[kind] += len(body)
        limits = self._limits.get(kind)
        while limits and records and (len(records) > limits.count or self._sizes[kind] > limits.size):
            self._remove(kind, next(iter(records)))

    def _remove(self, kind: str, id: str) -> bool:
        body = self._kinds[kind].pop(id, None)
        self._sizes[kind] -= len(body or b"")
        return body is not None
