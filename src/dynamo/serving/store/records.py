"""Records by kind and id: in the memory of one process, or in a SQLite file that several processes share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

Change = Callable[[bytes], bytes]
"""From the old body to the new one. Called in a transaction, and perhaps in another thread."""


class Limits(Struct, frozen=True):
    """When a kind holds more than this, the owner that has most of it loses the record whose last write is oldest.

    So nobody loses a record while he has less than an equal share.
    """

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
    """The records of one owner, who neither sees nor changes those of others; limits hold for all owners together.

    Its ids begin with the owner and a slash; those without a slash all have one owner.
    """

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


def owner_of(id: str) -> str:
    return id.partition("/")[0] if "/" in id else ""


class _RecordKind:
    """The records of one kind, by owner; those of an owner in the order of their last write."""

    def __init__(self) -> None:
        self.owners: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self.sizes: defaultdict[str, int] = defaultdict(int)
        self.count = 0
        self.size = 0

    def put(self, id: str, body: bytes) -> None:
        self.remove(id)
        owner = owner_of(id)
        self.owners[owner][id] = body
        self.sizes[owner] += len(body)
        self.size += len(body)
        self.count += 1

    def remove(self, id: str) -> bool:
        owner = owner_of(id)
        body = self.owners[owner].pop(id, None)
        if body is None:
            return False
        self.sizes[owner] -= len(body)
        self.size -= len(body)
        self.count -= 1
        return True

    def trim(self, limits: Limits, writer: str) -> None:
        while self.count and (self.count > limits.count or self.size > limits.size):
            counts, sizes = {owner: len(records) for owner, records in self.owners.items()}, self.sizes
            most = counts if self.count > limits.count else sizes
            owner = max(self.owners, key=lambda owner: (most[owner], owner == writer))
            self.remove(next(iter(self.owners[owner])))


class MemoryRecords:
    """Lives as long as its process."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = limits
        self._kinds: defaultdict[str, _RecordKind] = defaultdict(_RecordKind)

    async def put(self, kind: str, id: str, body: bytes) -> None:
        self._put(kind, id, body)

    async def get(self, kind: str, id: str) -> bytes | None:
        return self._get(kind, id)

    async def update(self, kind: str, id: str, change: Change) -> bytes | None:
        body = self._get(kind, id)
        if body is None:
            return None
        body = change(body)
        self._put(kind, id, body)
        return body

    async def delete(self, kind: str, id: str) -> bool:
        return self._kinds[kind].remove(id)

    async def all(self, kind: str, prefix: str = "") -> list[bytes]:
        owners = self._kinds[kind].owners
        found = [owners[owner_of(prefix)]] if "/" in prefix else list(owners.values())
        records = ((id, body) for each in found for id, body in each.items() if id.startswith(prefix))
        return [body for _, body in sorted(records)]

    async def close(self) -> None:
        self._kinds.clear()

    def _get(self, kind: str, id: str) -> bytes | None:
        return self._kinds[kind].owners[owner_of(id)].get(id)

    def _put(self, kind: str, id: str, body: bytes) -> None:
        self._kinds[kind].put(id, body)
        if limits := self._limits.get(kind):
            self._kinds[kind].trim(limits, owner_of(id))
