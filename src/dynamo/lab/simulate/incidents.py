"""What happens to a simulated fleet on the way: workers die, join, leave or slow down, or more requests come."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from msgspec import Struct

from dynamo.lab.simulate.bursts import with_burst
from dynamo.lab.simulate.fleet import SimulatedFleet
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.protocols.errors import InvalidArgument

Kind = Literal["kill", "drain", "join", "slow", "burst"]
_OF_A_WORKER = ("kill", "drain", "slow")
_WITH_FACTOR = ("slow", "burst")
_FORMS = "kill:N@SECONDS, drain:N@SECONDS, join@SECONDS, slow:NxFACTOR@SECONDS or burst:xFACTOR@SECONDS+DURATION"
_LARGEST_BURST = 10_000


class Incident(Struct, frozen=True):
    """`kill`, `drain` and `slow` happen to worker number `worker`; `join` adds one; `burst` happens to the traffic."""

    kind: Kind
    at: float
    """Seconds after the start of the traffic."""
    worker: int = 0
    factor: float = 1.0
    """By how much a slow worker's times, or the arrivals of a burst, are multiplied."""
    duration: float = 0.0
    """Seconds, of a burst."""

    async def happen(self, fleet: SimulatedFleet, start: float) -> None:
        if self.kind == "burst":
            return  # it is in the traffic
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


def with_bursts(
    traffic: Iterable[SimulatedRequest], incidents: Sequence[Incident], seed: int
) -> Iterable[SimulatedRequest]:
    """The traffic, and what its bursts add; where two of them overlap, both multiply it."""
    for number, burst in enumerate(each for each in incidents if each.kind == "burst"):
        traffic = with_burst(traffic, burst.at, burst.at + burst.duration, burst.factor, f"burst {seed}.{number}")
    return traffic


def read_incident(text: str) -> Incident:
    """`kill:2@60`, `drain:2@60`, `join@60`, `slow:2x10@60` or `burst:x3@60+30`; a ValueError says what is wrong."""
    what, _, when = text.partition("@")
    word, _, detail = what.partition(":")
    worker, _, factor = detail.partition("x")
    at, _, duration = when.partition("+")
    kind = next((kind for kind in get_args(Kind) if kind == word), None)
    given = (bool(worker), bool(factor), bool(duration))
    try:
        if kind is None or given != (kind in _OF_A_WORKER, kind in _WITH_FACTOR, kind == "burst"):
            raise ValueError
        incident = Incident(kind, float(at), int(worker or 0), float(factor or 1.0), float(duration or 0.0))
    except ValueError:
        raise ValueError(f"must be {_FORMS}, not '{text}'") from None
    if why := _wrong(incident):
        raise ValueError(f"'{text}': {why}")
    return incident


def _wrong(incident: Incident) -> str:
    """What is, if something is."""
    if not 0 <= incident.at < math.inf:
        return "the time must be 0 seconds or more"
    if incident.worker < 0:
        return "workers are counted from 0"
    if incident.kind == "slow" and not 0 < incident.factor < math.inf:
        return "the factor must be above 0"
    if incident.kind == "burst" and not 1 < incident.factor <= _LARGEST_BURST:
        return f"the factor must be above 1 and at most {_LARGEST_BURST}"
    if incident.kind == "burst" and not 0 < incident.duration < math.inf:
        return "the duration must be above 0 seconds"
    return ""
