"""Finds streams that have stalled: one sweep per second over all of a router's streams, and per token only a flag.

A stream without a token for a while may wait in its worker's queue, or behind a long prompt. The worker is taken to be
hung only when none of its streams moves; the time that this may take grows with the prompts that wait there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol, cast

from msgspec import Struct

from dynamo.kv.prompt_cost import SLOWEST_SECONDS_PER_TOKEN
from dynamo.protocols.errors import ConnectionTimeout
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.plane.base import Channel

SWEEP_SECONDS = 1.0


class StallLimits(Struct, frozen=True, kw_only=True):
    """Seconds; 0 is no limit."""

    between: float = 30.0
    """Without a token, after the first one."""
    first: float = 120.0
    """Until the first token."""


class Watched(Protocol):
    """What a sweep acts upon: a delivery."""

    def stalled(self, error: ConnectionTimeout, *, hung: bool) -> None:
        """Nothing came for too long; `hung` says that none of the instance's streams moves."""

    def unheard(self, error: ConnectionTimeout) -> None:
        """The instance answers no pings. It may come back: only a stream that can move should."""


class StreamClock:
    """The clock of one stream. Each token sets `moved`; `touch` is for what else arrives."""

    __slots__ = ("begun", "channel", "instance_id", "moved", "prompt_tokens", "since")

    def __init__(self, channel: Channel, instance_id: int, prompt_tokens: int, now: float) -> None:
        self.channel = channel
        self.instance_id = instance_id
        self.prompt_tokens = prompt_tokens
        self.moved = False
        self.begun = False
        self.since = now
        """When it was sent, or the sweep that last saw it move."""


UNWATCHED = StreamClock(cast(Channel, None), 0, 0, 0.0)
"""The clock of a stream that no sweep sees."""


class Stall(Struct, frozen=True):
    stream: Watched
    instance_id: int
    seconds: float
    hung: bool


class StallClock:
    """The clocks of all streams, by which a sweep finds the stalled ones. It knows no time but what it is given."""

    def __init__(self, limits: StallLimits) -> None:
        self._limits = limits
        self._clocks: dict[StreamClock, Watched] = {}
        self._progress: dict[int, float] = {}
        """When any stream of an instance last moved."""

    def __len__(self) -> int:
        return len(self._clocks)

    def __iter__(self) -> Iterator[tuple[StreamClock, Watched]]:
        return iter(tuple(self._clocks.items()))

    def add(self, clock: StreamClock, stream: Watched) -> None:
        self._clocks[clock] = stream

    def remove(self, clock: StreamClock) -> None:
        self._clocks.pop(clock, None)

    def touch(self, clock: StreamClock, now: float) -> None:
        """The stream has moved."""
        clock.begun, clock.since = True, now
        self._progress[clock.instance_id] = now

    def sweep(self, now: float) -> list[Stall]:
        """The streams that have stalled by now; all streams of an instance that hangs are among them."""
        waiting: dict[int, int] = {}
        for clock in self._clocks:
            if clock.moved:
                clock.moved = False
                self.touch(clock, now)
            elif not clock.begun:
                waiting[clock.instance_id] = waiting.get(clock.instance_id, 0) + clock.prompt_tokens
        alone, hung = [], set()
        for clock, stream in self._clocks.items():
            prefill = SLOWEST_SECONDS_PER_TOKEN * waiting.get(clock.instance_id, 0)
            first, between = self._limits.first, self._limits.between
            limit = between if clock.begun else first
            own = now - clock.since
            if limit and now - max(clock.since, self._progress.get(clock.instance_id, 0.0)) > limit + prefill:
                hung.add(clock.instance_id)
            elif clock.begun and between and own > max(first, between) + prefill:
                # Others move. This one may have been preempted, so it had as long as one that has not begun.
                alone.append(Stall(stream, clock.instance_id, own, hung=False))
        if not self._clocks:
            self._progress.clear()
        if not hung:
            return alone
        moving = [stall for stall in alone if stall.instance_id not in hung]
        return moving + [
            Stall(stream, clock.instance_id, now - clock.since, hung=True)
            for clock, stream in self._clocks.items()
            if clock.instance_id in hung
        ]


class StreamWatch:
    """Sweeps while there are streams; without any it has no timer."""

    def __init__(self, limits: StallLimits) -> None:
        self._stalls = StallClock(limits)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Watched, channel: Channel, instance_id: int, prompt_tokens: int) -> StreamClock:
        loop = asyncio.get_running_loop()
        clock = StreamClock(channel, instance_id, prompt_tokens, loop.time())
        self._stalls.add(clock, stream)
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_SECONDS, self._sweep)
        return clock

    def remove(self, clock: StreamClock) -> None:
        self._stalls.remove(clock)

    def touch(self, clock: StreamClock) -> None:
        self._stalls.touch(clock, asyncio.get_running_loop().time())

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep) if len(self._stalls) else None
        for clock, stream in self._stalls:
            if clock.channel.unheard:
                stream.unheard(ConnectionTimeout(f"worker {worker_name(clock.instance_id)} answers no pings"))
        for stall in self._stalls.sweep(loop.time()):
            which = "a token on any stream" if stall.hung else "a token"
            message = f"worker {worker_name(stall.instance_id)} has not sent {which} for {stall.seconds:.0f} s"
            stall.stream.stalled(ConnectionTimeout(message), hung=stall.hung)
