"""What the other frontends of the same workers serve to whom, and who waits there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from msgspec import Struct

from dynamo.router.choice.turns import TenantKey, Turns

EXCHANGE_SECONDS = 0.1
"""How often frontends tell each other, while there is something to tell."""
QUIET_SECONDS = 0.5
"""If nobody was served for so long, frontends may wait for each other, as they know different counters: they agree on
the highest. If that does not help for as long again, nobody waits for another frontend any more."""
SILENT_SECONDS = 1.0
"""Who waits at a frontend that was not heard from for so long is not waited for."""


class TenantService(Struct, frozen=True, kw_only=True, array_like=True):
    """What a frontend tells of one tenant."""

    name: str
    background: bool
    served: float
    """Since the frontend started, divided by the tenant's weight."""
    counter: float
    """As that frontend knows it: with pauses, and with what others served."""
    waits: bool
    claims: bool
    """It waits with a request that any worker may take."""


class _OtherFrontend(Struct):
    heard: float
    served: dict[TenantKey, float]
    waits: set[TenantKey]
    claims: set[TenantKey]


class ServiceElsewhere:
    """Keeps the `Turns` of one router equal to those of the others, but for what happened since their last messages."""

    def __init__(self, turns: Turns[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = turns
        self._clock = clock
        self._frontends: dict[int, _OtherFrontend] = {}
        self._here = 0.0
        """What was served here in all when that was looked at last."""
        self._moved = clock()
        """When anybody was served last, here or elsewhere."""
        self._quiet_for = 0.0

    def report(self, stuck: Collection[TenantKey] = ()) -> list[TenantService]:
        """What to tell the others; those `stuck` wait for certain workers, and nobody need wait for them."""
        turns = self._turns
        waiting = turns.waiting_keys()
        return [
            TenantService(
                name=key[0],
                background=key[1],
                served=turns.totals.get(key, 0.0),
                counter=turns.counter(key),
                waits=key in waiting,
                claims=key in waiting and key not in stuck,
            )
            for key in sorted(turns.totals.keys() | waiting.keys())
            if key[0]
        ]

    def learn(self, frontend: int, report: list[TenantService]) -> None:
        turns = self._turns
        known = self._frontends.get(frontend)
        first = known is None
        if known is None:
            known = self._frontends[frontend] = _OtherFrontend(self._clock(), {}, set(), set())
        known.heard = self._clock()
        rows = {(row.name, row.background): row for row in report}
        waits = {key for key, row in rows.items() if row.waits}
        claims = {key for key, row in rows.items() if row.claims}
        _change(turns.waits_elsewhere, waits - known.waits, 1)
        for key, row in rows.items():
            fresh = 0.0 if first else row.served - known.served.get(key, 0.0)
            known.served[key] = row.served
            if fresh:
                turns.served_elsewhere(key, fresh)
                self._moved = known.heard
            elif first or self._quiet_for > QUIET_SECONDS:
                turns.adopt(key, row.counter)
        _change(turns.waits_elsewhere, known.waits - waits, -1)
        _change(turns.claims_elsewhere, claims - known.claims, 1)
        _change(turns.claims_elsewhere, known.claims - claims, -1)
        known.waits, known.claims = waits, claims

    def expire(self) -> None:
        """Wait for nobody at a frontend that is silent, and for nobody at all if nothing moves."""
        now = self._clock()
        if not self._frontends:
            return
        if (here := sum(self._turns.totals.values())) != self._here:
            self._here, self._moved = here, now
        self._quiet_for = now - self._moved
        self._turns.patient = self._quiet_for <= 2 * QUIET_SECONDS
        for frontend, known in tuple(self._frontends.items()):
            if now - known.heard > SILENT_SECONDS:
                _change(self._turns.waits_elsewhere, known.waits, -1)
                _change(self._turns.claims_elsewhere, known.claims, -1)
                known.waits, known.claims = set(), set()
            if now - known.heard > 60 * SILENT_SECONDS:
                del self._frontends[frontend]


def _change(count: Callable[[TenantKey, int], None], keys: Iterable[TenantKey], change: int) -> None:
    for key in keys:
        count(key, change)
