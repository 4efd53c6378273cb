"""The simple policies: they look at nothing but who is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Policy(Protocol):
    def choose(self, request: Any, candidates: Sequence[int]) -> int:
        """One of the candidates, of which there is at least one."""


class RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: Any, candidates: Sequence[int]) -> int:
        self._turn += 1
        return candidates[self._turn % len(candidates)]


class Random:
    def choose(self, request: Any, candidates: Sequence[int]) -> int:
        return random.choice(candidates)


MODES: dict[str, Callable[[], Policy]] = {"round-robin": RoundRobin, "random": Random}


def make_policy(mode: str) -> Policy:
    make = MODES.get(mode)
    if make is None:
        raise ValueError(f"unknown router mode '{mode}': use one of {', '.join(MODES)}")
    return make()
