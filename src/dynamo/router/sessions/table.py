"""What is known of each session, for a bounded number of them: a client that invents ids displaces nobody else's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain
from typing import Generic, TypeVar

from dynamo.protocols.engine import Session

MOST_SESSIONS = 65_536

V = TypeVar("V")
Key = tuple[str, bytes]
"""An owner, and the digest of an id: an entry takes the same space however long the id is."""


def key_of(session: Session) -> Key:
    id = session.id.encode("utf-8", "surrogateescape")
    # A guessed id is a digest already.
    return session.owner, blake2b(id, digest_size=16).digest() if session.named else id


class _OwnersLine(Generic[V]):
    """The sessions of one API key, those used longest ago first."""

    __slots__ = ("often", "once")

    def __init__(self) -> None:
        # A plain dict takes ever longer to find its first entry when entries are removed there.
        self.once: OrderedDict[bytes, V] = OrderedDict()
        self.often: OrderedDict[bytes, V] = OrderedDict()
        """Those with a second turn."""

    def __len__(self) -> int:
        return len(self.once) + len(self.often)


class SessionTable(Generic[V]):
    """When it is full, the owner with most sessions loses one: the oldest with a single turn, else the oldest."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._owners: dict[str, _OwnersLine[V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: Key) -> V | None:
        owned = self._owners.get(key[0])
        if owned is None:
            return None
        found = owned.often.get(key[1])
        return owned.once.get(key[1]) if found is None else found

    def add(self, key: Key, value: V) -> None:
        """The first turn of a session that is not there."""
        if self._count >= self._most:
            self._drop_one()
        owned = self._owners.get(key[0])
        if owned is None:
            owned = self._owners[key[0]] = _OwnersLine()
        owned.once[key[1]] = value
        self._count += 1

    def used(self, key: Key) -> None:
        """Another turn of a session; fine if it is not there."""
        owned = self._owners.get(key[0])
        if owned is None:
            return
        value = owned.often.pop(key[1], None)
        if value is None:
            value = owned.once.pop(key[1], None)
        if value is not None:
            owned.often[key[1]] = value

    def remove(self, key: Key) -> None:
        """Fine if it is not there."""
        owned = self._owners.get(key[0])
        if owned is None:
            return
        if owned.once.pop(key[1], None) is not None or owned.often.pop(key[1], None) is not None:
            self._count -= 1
            if not len(owned):
                del self._owners[key[0]]

    def newest(self) -> Iterator[tuple[Key, V]]:
        """Those of each owner from the newest on, sessions with several turns before others."""
        for owner, owned in self._owners.items():
            for digest, value in chain(reversed(owned.often.items()), reversed(owned.once.items())):
                yield (owner, digest), value

    def _drop_one(self) -> None:
        owner, owned = max(self._owners.items(), key=lambda each: len(each[1]))
        line = owned.once or owned.often
        self.remove((owner, next(iter(line))))
