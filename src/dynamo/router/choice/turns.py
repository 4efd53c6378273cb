"""Whose turn it is: tenants share what is scarce by their weights, and each orders its own requests."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from dynamo.protocols.engine import Tenant

SomeOrder = tuple[float, ...]


class Waiter(Protocol):
    @property
    def tenant(self) -> Tenant: ...
    @property
    def order(self) -> SomeOrder:
        """Among the requests of its tenant, lowest first."""

    @property
    def cost(self) -> float: ...


W = TypeVar("W", bound=Waiter)


class _Line(Generic[W]):
    """The requests of one tenant. `due` is the virtual time at which its next request may start."""

    __slots__ = ("due", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.waiting: list[W] = []
        self.due = 0.0


class Turns(Generic[W]):
    """Start-time fair queueing.

    While two tenants have requests waiting, what they were served, divided by their weights, differs by no more than
    one request of each. A tenant that comes back after a pause has saved up nothing, and owes nothing.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line[W]] = {}
        self._now = 0.0
        """Virtual time: when the request that was served last was due."""
        self.count = 0
        """How many wait."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[W]:
        """In the order in which they would be served now. The lines may change meanwhile."""
        lines = [line for line in self._lines.values() if line.waiting]
        if len(lines) == 1:
            yield from tuple(lines[0].waiting)
            return
        # Among tenants that are due together, one that was served longer ago, or never, goes first.
        heads = [
            (max(line.due, self._now), line.due, at, 0, tuple(line.waiting), line.weight)
            for at, line in enumerate(lines)
        ]
        heapq.heapify(heads)
        while heads:
            due, _, at, index, waiting, weight = heads[0]
            yield waiting[index]
            if index + 1 < len(waiting):
                after = due + waiting[index].cost / weight
                heapq.heapreplace(heads, (after, after, at, index + 1, waiting, weight))
            else:
                heapq.heappop(heads)

    def add(self, waiter: W) -> None:
        tenant = waiter.tenant
        line = self._lines.get(tenant.name)
        if line is None:
            line = self._lines[tenant.name] = _Line(tenant.weight)
        insort(line.waiting, waiter, key=lambda one: one.order)
        self.count += 1

    def remove(self, waiter: W) -> None:
        """It leaves without being served; fine if it is not there."""
        line = self._lines.get(waiter.tenant.name)
        if line and waiter in line.waiting:
            line.waiting.remove(waiter)
            self.count -= 1
            self._forget_idle()

    def served(self, waiter: W) -> None:
        """It leaves, and its tenant's next request is due later by its cost."""
        line = self._lines[waiter.tenant.name]
        due = max(line.due, self._now)
        line.due = due + waiter.cost / line.weight
        self._now = max(self._now, due)
        self.remove(waiter)

    def excess(self, tenant: Tenant) -> W | None:
        """The last request of the tenant with most waiting for its weight; None if that is `tenant` itself."""
        most = max((line for line in self._lines.values() if line.waiting), key=_share, default=None)
        own = self._lines.get(tenant.name)
        own_share = ((len(own.waiting) if own else 0) + 1) / tenant.weight
        return most.waiting[-1] if most and most is not own and _share(most) > own_share else None

    def _forget_idle(self) -> None:
        if not self.count:
            self._lines.clear()
            self._now = 0.0
        elif len(self._lines) > 64:
            self._lines = {name: line for name, line in self._lines.items() if line.waiting or line.due > self._now}


def _share(line: _Line[W]) -> float:
    return len(line.waiting) / line.weight
