"""The endpoints of a pool: which servers a request may be sent to, and which worker answers behind which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from ipaddress import ip_address

from dynamo.protocols.errors import Unavailable
from dynamo.runtime.instances import InstanceSet


def endpoint_of(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    try:
        host = f"[{host}]" if ip_address(host.strip("[]")).version == 6 else host
    except ValueError:
        pass
    return f"{host}:{port}" if not host.startswith("[[") else f"{host[1:-1]}:{port}"


class Endpoints:
    """Those that may be chosen now, and how many requests each has from this picker.

    Without a pool they are where the workers are; with one, those of them that are in it.
    """

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self.workers: dict[int, str] = {}
        """The endpoint of each worker, by its instance id."""
        self._pool: frozenset[str] | None = None
        self._there: frozenset[str] = frozenset()
        self._version = 0
        self._excluded: dict[str, tuple[tuple[int, ...], int, frozenset[int]]] = {}
        """By model: its instances and our version when we looked, and which instances no endpoint leads to."""

    def __len__(self) -> int:
        return len(self._there)

    def join(self, instance_id: int, endpoint: str) -> None:
        if self.workers.get(instance_id) != endpoint:
            self.workers[instance_id] = endpoint
            self._changed()

    def leave(self, instance_id: int) -> None:
        if self.workers.pop(instance_id, None) is not None:
            self._changed()

    def limit_to(self, pool: Iterable[str]) -> None:
        """From now on only servers of this pool count."""
        self._pool = frozenset(pool)
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._there = frozenset(self.workers.values()) if self._pool is None else self._pool

    def excluded(self, instances: InstanceSet, subset: frozenset[str] | None) -> Collection[int]:
        """The instances that no allowed endpoint leads to. Empty where there are none, so that routers stay quick."""
        if subset is not None:
            return self._outside(instances, self._there & subset)
        if self._pool is None:
            return ()
        ids = instances.available()
        known = self._excluded.get(instances.name)
        if known is None or known[0] is not ids or known[1] != self._version:
            known = self._excluded[instances.name] = (ids, self._version, self._outside(instances, self._there))
        return known[2] or ()

    def _outside(self, instances: InstanceSet, allowed: frozenset[str]) -> frozenset[int]:
        return frozenset(each for each in instances.ids() if self.workers.get(each) not in allowed)

    def least_loaded(self, subset: frozenset[str] | None) -> str:
        """For a request of which only the load can be considered; raises Unavailable."""
        candidates = self._there if subset is None else self._there & subset
        if not candidates:
            among = "" if subset is None else " among those that the gateway allows for this request"
            raise Unavailable(f"No server of this pool is ready{among}. Please retry shortly.")
        return min(candidates, key=lambda each: (self.in_flight[each], each))
