"""Made-up traffic: arrivals at random, groups that share a prefix, sessions of several turns."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from dynamo.lab.simulate.traffic import SimulatedRequest


class Synthetic(Struct, frozen=True, kw_only=True):
    """`requests` in all. Each turn of a session repeats the prompt before it, its answer, and adds a quarter."""

    requests: int
    input_tokens: int
    output_tokens: int
    interval: float
    """Mean seconds between the arrivals of sessions, which are independent of each other."""
    turns: int = 1
    shared_prefix: float = 0.0
    """The share of the first prompt that all sessions of a group have in common."""
    groups: int = 1
    think: float = 0.0
    """Mean seconds between an answer and the session's next turn."""
    seed: int = 0
    block_size: int = 64

    def __iter__(self) -> Iterator[SimulatedRequest]:
        rng = random.Random(self.seed)
        now, sent = 0.0, 0
        size = self.block_size
        shared = int(self.shared_prefix * self.input_tokens) // size
        longest = (self.input_tokens + (self.turns - 1) * (self.output_tokens + self.input_tokens // 4)) // size
        # Block ids are dense: those of all groups, then those of each session. Token ids have 32 bits only.
        session, own = 0, self.groups * shared
        while sent < self.requests:
            if self.interval:
                now += rng.expovariate(1 / self.interval)
            group = rng.randrange(self.groups)
            tokens = self.input_tokens
            for turn in range(min(self.turns, self.requests - sent)):
                blocks = (
                    *range(group * shared, (group + 1) * shared),
                    *range(own, own + max(0, tokens // size - shared)),
                )
                yield SimulatedRequest(
                    at=None if turn else now,
                    input_tokens=tokens,
                    output_tokens=self.output_tokens,
                    block_ids=blocks,
                    block_size=size,
                    session=f"{session}" if self.turns > 1 else "",
                    delay=rng.expovariate(1 / self.think) if turn and self.think else 0.0,
                    label=f"session {session}, turn {turn + 1}",
                )
                tokens += self.output_tokens + self.input_tokens // 4
                sent += 1
            session += 1
            own += longest
