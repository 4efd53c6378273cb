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
_LINES = 64
"""Beyond so many, tenants that wait for nothing are forgotten."""


class _Line(Generic[W]):
    """The requests of one tenant. `counter` is the service it had, divided by its weight."""

    __slots__ = ("background", "counter", "served_at", "waiting", "weight")

    def __init__(self, background: bool) -> None:
        self.background = background
        self.weight = 1.0
        self.waiting: list[W] = []
        self.counter = 0.0
        self.served_at = 0


class Turns(Generic[W]):
    """Virtual token counters: the tenant that had the least service goes first, those in the background last.

    While two tenants have requests waiting, what they were served differs by no more than `2·max(w_p·L, w_q·M)`: L is
    the longest prompt, M the tokens that all workers' batches hold, and the weights are those of `service`. A tenant
    that comes back after a pause has saved up nothing: its counter is lifted to the least of those who wait.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, bool], _Line[W]] = {}
        self._last: dict[bool, _Line[W]] = {}
        """In the foreground and in the background, the line that was served last."""
        self._served = 0
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
        # Among tenants that had the same, one that was served longer ago, or never, goes first.
        served = self._served
        heads = [
            (line.background, line.counter, line.served_at, at, 0, tuple(line.waiting), line.weight)
            for at, line in enumerate(lines)
        ]
        heapq.heapify(heads)
        while heads:
            background, counter, _, at, index, waiting, weight = heads[0]
            yield waiting[index]
            if index + 1 < len(waiting):
                served += 1
                after = counter + waiting[index].cost / weight
                heapq.heapreplace(heads, (background, after, served, at, index + 1, waiting, weight))
            else:
                heapq.heappop(heads)

    def add(self, waiter: W) -> None:
        line = self._arrived(waiter.tenant)
        insort(line.waiting, waiter, key=lambda one: one.order)
        self.count += 1

    def remove(self, waiter: W) -> None:
        """It leaves without being served; fine if it is not there."""
        line = self._lines.get(_key(waiter.tenant))
        if line and waiter in line.waiting:
            line.waiting.remove(waiter)
            self.count -= 1

    def served(self, waiter: W) -> None:
        """It leaves, and its tenant is charged its cost."""
        self._charge(self._lines[_key(waiter.tenant)], waiter.cost)
        self.remove(waiter)

    def passed(self, tenant: Tenant, cost: float) -> None:
        """A request was served that did not have to wait."""
        self._charge(self._arrived(tenant), cost)

    def charge(self, tenant: Tenant, cost: float) -> None:
        """Its requests that were served have turned out to cost more, or less if `cost` is negative."""
        line = self._lines.get(_key(tenant))
        if line is not None:
            line.counter += cost / line.weight

    def excess(self, tenant: Tenant) -> W | None:
        """The last request of the tenant with most waiting for its weight; None if that is `tenant` itself."""
        most = max((line for line in self._lines.values() if line.waiting), key=_share, default=None)
        own = self._lines.get(_key(tenant))
        own_share = ((len(own.waiting) if own else 0) + 1) / tenant.weight
        return most.waiting[-1] if most and most is not own and _share(most) > own_share else None

    def counter(self, tenant: Tenant) -> float:
        """What the tenant was served, lifted by its pauses; 0 for one that is not known."""
        line = self._lines.get(_key(tenant))
        return line.counter if line else 0.0

    def _arrived(self, tenant: Tenant) -> _Line[W]:
        key = _key(tenant)
        line = self._lines.get(key)
        if line is None:
            self._forget_idle()
            line = self._lines[key] = _Line(tenant.background)
        line.weight = tenant.weight
        if not line.waiting:
            line.counter = max(line.counter, self._floor(tenant.background))
        return line

    def _floor(self, background: bool) -> float:
        waiting = [line.counter for line in self._lines.values() if line.waiting and line.background is background]
        if waiting:
            return min(waiting)
        last = self._last.get(background)
        return last.counter if last else 0.0

    def _charge(self, line: _Line[W], cost: float) -> None:
        self._served += 1
        line.served_at = self._served
        line.counter += cost / line.weight
        self._last[line.background] = line

    def _forget_idle(self) -> None:
        """Those whose counters would be lifted anyway."""
        if len(self._lines) < _LINES:
            return
        floors = {background: self._floor(background) for background in (False, True)}
        self._lines = {
            key: line
            for key, line in self._lines.items()
            if line.waiting or line.counter > floors[line.background] or line is self._last.get(line.background)
        }


def _key(tenant: Tenant) -> tuple[str, bool]:
    return tenant.name, tenant.background


def _share(line: _Line[W]) -> float:
    return len(line.waiting) / line.weight
