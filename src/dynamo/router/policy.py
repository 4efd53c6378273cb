"""The simple policies. They know only the candidates and the requests in flight at each. The settings list them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from dynamo.protocols.errors import InvalidRequest

InFlight = Mapping[int, int]
"""Our own requests in flight at each instance; an instance without any may be missing."""


class Policy(Protocol):
    def choose(self, candidates: Sequence[int], in_flight: InFlight) -> int:
        """Choose one of the candidates, of which there is at least one."""


class RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, candidates: Sequence[int], in_flight: InFlight) -> int:
        self._turn += 1
        return candidates[self._turn % len(candidates)]


class Random:
    def choose(self, candidates: Sequence[int], in_flight: InFlight) -> int:
        return random.choice(candidates)


class LeastLoaded:
    def choose(self, candidates: Sequence[int], in_flight: InFlight) -> int:
        loads = [in_flight.get(id, 0) for id in candidates]
        least = min(loads)
        return random.choice([id for id, load in zip(candidates, loads, strict=True) if load == least])


class PowerOfTwo:
    """The less loaded of two candidates drawn at random."""

    def choose(self, candidates: Sequence[int], in_flight: InFlight) -> int:
        if len(candidates) == 1:
            return candidates[0]
        one, other = random.sample(candidates, 2)
        return one if in_flight.get(one, 0) <= in_flight.get(other, 0) else other


class Direct:
    """Chooses none: each request must name its instance."""

    def choose(self, candidates: Sequence[int], in_flight: InFlight) -> int:
        raise InvalidRequest(
            "The router mode is 'direct': nvext.backend_instance_id must name the worker.",
            "nvext.backend_instance_id",
            "missing_required_parameter",
        )
