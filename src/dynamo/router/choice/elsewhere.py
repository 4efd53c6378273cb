"""What the other frontends of the same workers serve to whom, and who waits there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from dynamo.router.choice.turns import TenantKey, Turns

EXCHANGE_SECONDS = 0.1
"""How often frontends tell each other, while there is something to tell."""
SILENT_SECONDS = 1.0
"""Who waits at a frontend that was not heard from for so long is not waited for."""


class TenantService(Struct, frozen=True, kw_only=True, array_like=True):
    """What a frontend tells of one tenant."""

    name: str
    background: bool
    served: float
    """Since the frontend started, divided by the tenant's weight."""
    waits: bool
    """It has a request that any worker may take, and that waits for no tenant of another frontend."""


class _Frontend(Struct):
    heard: float
    served: dict[TenantKey, float]
    waits: set[TenantKey]


class ServiceElsewhere:
    """Keeps the `Turns` of one router equal to those of the others, but for what happened since their last messages."""

    def __init__(self, turns: Turns[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = turns
        self._clock = clock
        self._frontends: dict[int, _Frontend] = {}

    def report(self, stuck: Collection[TenantKey] = ()) -> list[TenantService]:
        """What to tell the others; those `stuck` wait for certain workers, and nobody need wait for them."""
        turns = self._turns
        waiting = {key for key in turns.waiting_keys() if key not in stuck and not turns.is_ahead(key)}
        return [
            TenantService(name=key[0], background=key[1], served=turns.totals.get(key, 0.0), waits=key in waiting)
            for key in sorted(turns.totals.keys() | waiting)
            if key[0]
        ]

    def learn(self, frontend: int, report: list[TenantService]) -> None:
        known = self._frontends.get(frontend)
        first = known is None
        if known is None:
            known = self._frontends[frontend] = _Frontend(self._clock(), {}, set())
        known.heard = self._clock()
        rows = {(row.name, row.background): row for row in report}
        waits = {key for key, row in rows.items() if row.waits}
        for key in waits - known.waits:
            self._turns.waits_elsewhere(key, 1)
        for key, row in rows.items():
            # What it served before it was heard of first is not known here, nor needed: see the bound of `Turns`.
            fresh = row.served - known.served.get(key, row.served if first else 0.0)
            known.served[key] = row.served
            if fresh:
                self._turns.served_elsewhere(key, fresh)
        for key in known.waits - waits:
            self._turns.waits_elsewhere(key, -1)
        known.waits = waits

    def expire(self) -> None:
        """Wait for nobody at a frontend that is silent."""
        now = self._clock()
        for frontend, known in tuple(self._frontends.items()):
            if now - known.heard > SILENT_SECONDS:
                for key in known.waits:
                    self._turns.waits_elsewhere(key, -1)
                known.waits = set()
            if now - known.heard > 60 * SILENT_SECONDS:
                del self._frontends[frontend]
