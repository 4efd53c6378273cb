"""Whose turn it is: tenants share what is scarce by their weights, and each orders its own requests."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from dynamo.protocols.engine import Tenant

SomeOrder = tuple[float, ...]
TenantKey = tuple[str, bool]
"""Its name, and whether it is in the background."""


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
"""Beyond this many, tenants that wait for nothing are forgotten."""


class _Line(Generic[W]):
    """The requests of one tenant. `counter` is the service it had, divided by its weight."""

    __slots__ = ("background", "claims", "counter", "elsewhere", "served_at", "waiting", "weight")

    def __init__(self, background: bool) -> None:
        self.background = background
        self.weight = 1.0
        self.waiting: list[W] = []
        self.counter = 0.0
        self.served_at = 0
        self.elsewhere = 0
        """At how many other frontends it has requests waiting."""
        self.claims = 0
        """At how many of them it could be served now."""

    @property
    def waits(self) -> bool:
        return bool(self.waiting) or self.elsewhere > 0


class Turns(Generic[W]):
    """Virtual token counters: the tenant that had the least service goes first, those in the background last.

    While two tenants have requests waiting, what they were served differs by no more than `2·max(w_p·L, w_q·M)`: L is
    the longest prompt, M the tokens that all workers' batches hold, and the weights are those of `service`. A tenant
    that comes back after a pause has saved up nothing: its counter is lifted to the least of those who wait.

    What other frontends of the same workers serve counts too, and a tenant that had more than one that waits there
    waits as well. With several frontends the bound grows by what all serve between two of their messages.
    """

    def __init__(self) -> None:
        self._lines: dict[TenantKey, _Line[W]] = {}
        self._last: dict[bool, _Line[W]] = {}
        """In the foreground and in the background, the line that was served last."""
        self._served = 0
        self.count = 0
        """How many wait."""
        self.totals: dict[TenantKey, float] = {}
        """What each tenant was served here in all, divided by its weight."""
        self.patient = True
        """Whether tenants wait for those that had less at other frontends."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a request begins to wait, and when one is charged."""

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
        self.on_change()

    def remove(self, waiter: W) -> None:
        """It leaves without being served; fine if it is not there."""
        line = self._lines.get(tenant_key(waiter.tenant))
        if line and waiter in line.waiting:
            line.waiting.remove(waiter)
            self.count -= 1

    def served(self, waiter: W) -> None:
        """It leaves, and its tenant is charged its cost."""
        self._charge(tenant_key(waiter.tenant), self._lines[tenant_key(waiter.tenant)], waiter.cost)
        self.remove(waiter)

    def passed(self, tenant: Tenant, cost: float) -> None:
        """A request was served that did not have to wait."""
        self._charge(tenant_key(tenant), self._arrived(tenant), cost)

    def charge(self, tenant: Tenant, cost: float) -> None:
        """Its requests that were served have turned out to cost more, or less if `cost` is negative."""
        key = tenant_key(tenant)
        line = self._lines.get(key)
        if line is not None:
            line.counter += cost / line.weight
            self.totals[key] = self.totals.get(key, 0.0) + cost / line.weight
            self.on_change()

    def served_elsewhere(self, key: TenantKey, service: float) -> None:
        """Another frontend has served it; `service` is divided by its weight."""
        line = self._line(key)
        self._lift(line)
        line.counter += service
        self._last[line.background] = line

    def adopt(self, key: TenantKey, counter: float) -> None:
        """What a frontend that is heard of for the first time knows of it."""
        line = self._line(key)
        line.counter = max(line.counter, counter)

    def waits_elsewhere(self, key: TenantKey, change: int) -> None:
        """Its requests wait at `change` more other frontends, or at fewer."""
        line = self._line(key)
        if change > 0:
            self._lift(line)
        line.elsewhere += change

    def claims_elsewhere(self, key: TenantKey, change: int) -> None:
        """Any worker may take them at `change` more of those frontends, or at fewer."""
        self._line(key).claims += change

    def is_ahead(self, key: TenantKey) -> bool:
        """It must wait: one that waits at another frontend, and only there, had less."""
        own = self._lines.get(key)
        if own is None or not self.patient:
            return False
        return any(
            line.claims and not line.waiting and (line.background, line.counter) < (own.background, own.counter)
            for line in self._lines.values()
        )

    def waiting_keys(self) -> dict[TenantKey, int]:
        """How many requests of each tenant wait here, if any do."""
        return {key: len(line.waiting) for key, line in self._lines.items() if line.waiting}

    def standings(self) -> list[tuple[TenantKey, float, int]]:
        """What each tenant was served, and how many of its requests wait here; those with most first."""
        found = [(key, line.counter, len(line.waiting)) for key, line in self._lines.items()]
        return sorted(found, key=lambda one: one[2], reverse=True)

    def gap(self) -> float:
        """How far apart those in the foreground are that wait, here or elsewhere."""
        counters = [line.counter for line in self._lines.values() if line.waits and not line.background]
        return max(counters) - min(counters) if counters else 0.0

    def excess(self, tenant: Tenant) -> W | None:
        """The last request of the tenant with most waiting for its weight; None if that is `tenant` itself."""
        most = max((line for line in self._lines.values() if line.waiting), key=_share, default=None)
        own = self._lines.get(tenant_key(tenant))
        own_share = ((len(own.waiting) if own else 0) + 1) / tenant.weight
        return most.waiting[-1] if most and most is not own and _share(most) > own_share else None

    def counter(self, key: TenantKey) -> float:
        """What the tenant was served, lifted by its pauses; 0 for one that is not known."""
        line = self._lines.get(key)
        return line.counter if line else 0.0

    def _line(self, key: TenantKey) -> _Line[W]:
        line = self._lines.get(key)
        if line is None:
            self._forget_idle()
            line = self._lines[key] = _Line(key[1])
        return line

    def _arrived(self, tenant: Tenant) -> _Line[W]:
        line = self._line(tenant_key(tenant))
        line.weight = tenant.weight
        self._lift(line)
        return line

    def _lift(self, line: _Line[W]) -> None:
        """It may begin to wait, and has saved up nothing."""
        if not line.waits:
            line.counter = max(line.counter, self._floor(line.background))

    def _floor(self, background: bool) -> float:
        waiting = [line.counter for line in self._lines.values() if line.waits and line.background is background]
        if waiting:
            return min(waiting)
        last = self._last.get(background)
        return last.counter if last else 0.0

    def _charge(self, key: TenantKey, line: _Line[W], cost: float) -> None:
        self._served += 1
        line.served_at = self._served
        line.counter += cost / line.weight
        self.totals[key] = self.totals.get(key, 0.0) + cost / line.weight
        self._last[line.background] = line
        self.on_change()

    def _forget_idle(self) -> None:
        """Those whose counters would be lifted anyway."""
        if len(self._lines) < _LINES:
            return
        floors = {background: self._floor(background) for background in (False, True)}
        self._lines = {
            key: line
            for key, line in self._lines.items()
            if line.waits or line.counter > floors[line.background] or line is self._last.get(line.background)
        }


def tenant_key(tenant: Tenant) -> TenantKey:
    return tenant.name, tenant.background


def _share(line: _Line[W]) -> float:
    return len(line.waiting) / line.weight
