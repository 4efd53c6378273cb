"""More arrivals for a while: further users, with prompts of their own, beside those who come anyway."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator

import xxhash
from msgspec import structs

from dynamo.lab.simulate.traffic import SimulatedRequest


def with_burst(
    requests: Iterable[SimulatedRequest], begin: float, end: float, factor: float, seed: str
) -> Iterator[SimulatedRequest]:
    """Add copies of what arrives from `begin` to `end`, so that there is `factor` times as much; the rest is the same.

    Copies come at random times before the next arrival. Those of a session go on as the session does.
    """
    rng = random.Random(seed)
    copied: dict[str, int] = {}
    """How often the last turn with a time of each session was copied."""
    for arrival, turns, next_at in _arrivals(requests):
        times: list[float] = []
        if arrival is not None and arrival.at is not None:
            yield arrival
            if begin <= arrival.at < end:
                times = sorted(rng.uniform(arrival.at, min(next_at, end)) for _ in range(_whole(factor - 1, rng)))
        own = []
        for turn in turns:
            yield turn
            if arrival is not None and turn.session == arrival.session:
                own.append(turn)
            else:
                yield from (_copy(turn, number, seed) for number in range(copied.get(turn.session, 0)))
        for number, at in enumerate(times):
            assert arrival is not None
            yield structs.replace(_copy(arrival, number, seed), at=at)
            yield from (_copy(turn, number, seed) for turn in own)
        if arrival is not None and arrival.session:
            copied[arrival.session] = len(times)


def _arrivals(
    requests: Iterable[SimulatedRequest],
) -> Iterator[tuple[SimulatedRequest | None, list[SimulatedRequest], float]]:
    """Each arrival, the turns without a time that follow it in the traffic, and the time of the next arrival."""
    arrival: SimulatedRequest | None = None
    turns: list[SimulatedRequest] = []
    for request in requests:
        if request.at is None:
            turns.append(request)
            continue
        yield arrival, turns, request.at
        arrival, turns = request, []
    yield arrival, turns, math.inf


def _copy(request: SimulatedRequest, number: int, burst: str) -> SimulatedRequest:
    """The same of another user: copies with the same number share blocks where the originals do."""
    name = f"{burst}/{number}"
    return structs.replace(
        request,
        session=f"{request.session}/{name}" if request.session else "",
        block_ids=tuple(xxhash.xxh32_intdigest(f"{name}/{block_id}".encode()) for block_id in request.block_ids),
        label=f"{request.label}/{name}",
    )


def _whole(number: float, rng: random.Random) -> int:
    """Rounded up as often as makes the mean right."""
    return math.floor(number) + (rng.random() < number % 1)
