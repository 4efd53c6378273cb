"""What happens to a simulated fleet on the way: workers die, join, leave or slow down."""

from __future__ import annotations

import asyncio
from typing import Literal, get_args

from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument
from dynamo.simulate.fleet import SimulatedFleet

Kind = Literal["kill", "drain", "join", "slow"]


class Incident(Struct, frozen=True):
    """`kill`, `drain` and `slow` happen to worker number `worker`; `join` adds one."""

    kind: Kind
    at: float
    """Seconds after the start of the traffic."""
    worker: int = 0
    factor: float = 1.0
    """By how much a slow worker's times are multiplied."""

    async def happen(self, fleet: SimulatedFleet, start: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, start + self.at - loop.time()))
        if self.kind == "join":
            if fleet.startup_time:
                await asyncio.sleep(fleet.startup_time)
            await fleet.join()
            return
        if self.worker >= len(fleet.workers):
            raise InvalidArgument(f"{self.kind}: there is no worker {self.worker}, only {len(fleet.workers)}")
        worker = fleet.workers[self.worker]
        if self.kind == "kill":
            await worker.kill()
        elif self.kind == "drain":
            await worker.drain()
        else:
            worker.timing.factor = self.factor


def read_incident(text: str) -> Incident:
    """`kill:2@60`, `drain:2@60`, `join@60` or `slow:2x10@60`; a ValueError says what is wrong."""
    what, found, at = text.partition("@")
    word, _, detail = what.partition(":")
    worker, _, factor = detail.partition("x")
    kind = next((kind for kind in get_args(Kind) if kind == word), None)
    try:
        if not found or kind is None or (kind == "join") is bool(detail):
            raise ValueError
        incident = Incident(kind, float(at), int(worker or 0), float(factor or 1.0))
        if incident.at < 0 or incident.worker < 0 or incident.factor <= 0 or (kind == "slow") is not bool(factor):
            raise ValueError
    except ValueError:
        raise ValueError("kill:N@SECONDS, drain:N@SECONDS, join@SECONDS or slow:NxFACTOR@SECONDS") from None
    return incident
