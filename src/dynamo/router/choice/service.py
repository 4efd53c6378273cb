"""What tenants are served, in tokens by their cost: charged to the fair queue as requests begin, go on and end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from dynamo.protocols.engine import Tenant
from dynamo.router.choice.turns import Turns

PROMPT, CACHED, OUTPUT = 1.0, 0.1, 2.0
"""The cost of a prompt token to compute, of one that is cached, and of an output token."""
PROMPT_BATCHES = 1.0
"""Where tenants share, a worker that has more batches of prompt tokens before it takes no further request."""
_SETTLE_SECONDS = 0.05


def prompt_cost(computed: float, cached: float) -> float:
    return max(1.0, PROMPT * computed + CACHED * cached)


class TenantsUnderWay(Struct, frozen=True):
    """What decides who may use the places that are kept."""

    own: int = 0
    """Requests of the tenant that run."""
    active: int = 0
    """Tenants with requests that run."""
    absent: int = 0
    """Tenants with keys that have requests neither under way nor waiting."""


def most_requests(max_num_seqs: int, tenant: Tenant, under_way: TenantsUnderWay) -> int:
    """How many requests a worker may have when it takes one of this tenant.

    A few places are kept for absent tenants, and for those that have far less than an equal share of the places; more
    of them from batches: who comes beside a flood of long answers would otherwise wait until one of them ends.
    """
    if tenant.background:
        return max(1, max_num_seqs - -(-max_num_seqs // 8))
    if 2 * under_way.own * (under_way.active + 1) <= max_num_seqs:
        return max_num_seqs
    return max(1, max_num_seqs - min(under_way.absent, _kept(max_num_seqs)))


def _kept(max_num_seqs: int) -> int:
    """Too few places to spare one cost more than a wait."""
    return max(1, max_num_seqs // 32) if max_num_seqs >= 8 else 0


class Served(Protocol):
    """A placement."""

    output_tokens: int
    """So far."""
    cached_tokens: int | None
    """How much of its prompt was cached, as the worker says at the end; None if it does not."""


class ServedShare(Protocol):
    """A request that was placed."""

    cached_tokens: int
    """How much of its prompt was charged as cached."""

    @property
    def tenant(self) -> Tenant: ...


class ServiceLedger:
    """Charges each request its prompt when it is placed, and its output while it comes: nobody predicts its length.

    When the worker says how much of the prompt was cached, the charge is corrected.
    """

    def __init__(self, turns: Turns[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = turns
        self._clock = clock
        self._open: dict[Served, tuple[ServedShare, int]] = {}
        """With the output tokens that were charged."""
        self._running: Counter[tuple[str, bool]] = Counter()
        self._active = 0
        """How many tenants in the foreground have requests under way."""
        self._settled = 0.0

    @property
    def is_open(self) -> bool:
        """Whether any request of a tenant is placed and has not ended."""
        return bool(self._open)

    def running(self, tenant: Tenant) -> int:
        """How many of its requests are placed and have not ended."""
        return self._running[tenant.name, tenant.background]

    def under_way(self, tenant: Tenant) -> TenantsUnderWay:
        return TenantsUnderWay(self.running(tenant), self._active, self._absent(tenant))

    def _absent(self, tenant: Tenant) -> int:
        left = tenant.keys - self._active
        if left > 0 and self._turns.count:
            left -= sum(
                not background and not self._running[name, background]
                for name, background in self._turns.waiting_keys()
            )
        return max(0, left)

    def began(self, placement: Served, request: ServedShare) -> None:
        """Does nothing for a request without a tenant."""
        tenant = request.tenant
        if tenant.name:
            self._open[placement] = request, placement.output_tokens
            key = (tenant.name, tenant.background)
            self._active += not tenant.background and not self._running[key]
            self._running[key] += 1

    def ended(self, placement: Served) -> None:
        found = self._open.pop(placement, None)
        if found is None:
            return
        request, charged = found
        tenant, cost = request.tenant, OUTPUT * (placement.output_tokens - charged)
        if placement.cached_tokens is not None:
            cost += (PROMPT - CACHED) * (request.cached_tokens - placement.cached_tokens)
        self._turns.charge(tenant, cost)
        key = (tenant.name, tenant.background)
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
            self._active -= not tenant.background

    def settle(self) -> None:
        """Charge what came since the last time, unless that was just now."""
        now = self._clock()
        if now - self._settled < _SETTLE_SECONDS:
            return
        self._settled = now
        for placement, (request, charged) in self._open.items():
            if fresh := placement.output_tokens - charged:
                self._open[placement] = request, placement.output_tokens
                self._turns.charge(request.tenant, OUTPUT * fresh)
