"""The clock of a mocker: data parallel ranks, each with its own scheduler and cache, that iterate together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate, repeat

from msgspec import Struct

from dynamo.kv.hashing import BASE_SEED
from dynamo.kv.messages import KvChange, Tier
from dynamo.kv.pauses import SessionPause
from dynamo.protocols.engine import SessionName
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledRequestMetrics

from .args import MockerArgs
from .profile import timing_for
from .scheduler import Finished, Load, Scheduler, StepResult
from .sequence import Sequence
from .timing import Timing
from .tokens import MockAnswer

RankEvents = list[tuple[int, list[KvChange]]]
RankTierEvents = list[tuple[int, list[tuple[Tier, KvChange]]]]
RankMetrics = list[tuple[int, ScheduledRequestMetrics, QueuedRequestMetrics]]
_FEW = 8
"""Iterations whose times are added up one by one."""


class Iteration(Struct):
    """What happened up to `ends`, when its tokens are ready; `steps` iterations were folded into one."""

    ends: float
    steps: int
    answered: list[Sequence]
    """Each got `steps` tokens."""
    finished: list[Finished]
    events: RankEvents
    tier_events: RankTierEvents = []
    metrics: RankMetrics = []

    def take_tokens(self) -> list[tuple[int, list[int]]]:
        """The tokens by request, once; those of earlier iterations must have been taken before."""
        return [(sequence.request_id, sequence.take(self.steps)) for sequence in self.answered]


class Ranks:
    """A pure state machine: time is an input, and it never waits."""

    def __init__(self, args: MockerArgs, *, timing: Timing | None = None, record_events: bool = True) -> None:
        self._timing = timing or timing_for(args)
        self._capacity = args.capacity_tokens
        self.schedulers = [Scheduler(args, self._timing, record_events=record_events) for _ in range(args.dp_size)]
        self._has_tiers = args.num_g2_blocks > 0
        self._rank_of: dict[int, Scheduler] = {}
        self._next = 0
        self._measures = False

    @property
    def next_rank(self) -> int:
        """The rank for a request that names none."""
        return self._next

    @property
    def busy(self) -> bool:
        return bool(self._rank_of)

    def add(
        self,
        request_id: int,
        prompt: Collection[int],
        answer: MockAnswer,
        *,
        dp_rank: int | None = None,
        salt: int = BASE_SEED,
        session: SessionName | None = None,
    ) -> int:
        """Queue a request on the rank it names or else on the next in turn, and say which."""
        count = len(self.schedulers)
        if dp_rank is not None and not 0 <= dp_rank < count:
            raise InvalidArgument(f"dp_rank {dp_rank} is not one of the {count} ranks 0..{count - 1}")
        if request_id in self._rank_of:
            raise InvalidArgument(f"request {request_id} is already here")
        rank = self._next if dp_rank is None else dp_rank
        self.schedulers[rank].add(request_id, prompt, answer, salt=salt, session=session)
        if dp_rank is None:
            self._next = (rank + 1) % count
        self._rank_of[request_id] = self.schedulers[rank]
        return rank

    def cancel(self, request_id: int) -> bool:
        scheduler = self._rank_of.pop(request_id, None)
        return scheduler is not None and scheduler.cancel(request_id)

    def step(self, now: float, until: float | None = None) -> Iteration:
        """One iteration of every busy rank, started at `now`, as long as the slowest takes.

        Given `until`, iterations in which nothing but decoding can happen are folded together while they end by then.
        """
        busy = [scheduler for scheduler in self.schedulers if scheduler.busy]
        quiet = min([scheduler.quiet_steps() for scheduler in busy], default=0) if until is not None else 0
        if until is not None and quiet > 1:
            ends, steps = self._pace(busy, now, until, quiet)
            begins = self._begins(busy, now, steps) if self._has_tiers else None
            results = [scheduler.fold(steps, ends - now, begins) for scheduler in busy]
        else:
            steps = 1
            results = [scheduler.step(now) for scheduler in busy]
            ends = now + max([result.duration for result in results], default=0.0)
        iteration = self._gather(results, ends, steps)
        if self._measures:
            iteration.metrics = [
                (self.schedulers.index(scheduler), *result.metrics)
                for scheduler, result in zip(busy, results, strict=True)
                if result.metrics is not None
            ]
        return iteration

    def run_ends(self, now: float) -> float | None:
        """When the run of iterations that only decode will end; None if fewer than two come next."""
        busy = [scheduler for scheduler in self.schedulers if scheduler.busy]
        quiet = min([scheduler.quiet_steps() for scheduler in busy], default=0)
        return self._pace(busy, now, math.inf, quiet)[0] if quiet > 1 else None

    def paused(self, pause: SessionPause) -> None:
        """Its session is between two turns."""
        if pause.dp_rank < len(self.schedulers):
            self.schedulers[pause.dp_rank].pool.idle.paused(pause)

    def clear_cache(self) -> bool:
        """Forget every cached prefix; rejected while requests hold blocks anywhere."""
        if any(scheduler.pool.used for scheduler in self.schedulers):
            return False
        return all([scheduler.clear_cache() for scheduler in self.schedulers])

    def take_events(self) -> RankEvents:
        taken = ((rank, scheduler.take_events()) for rank, scheduler in enumerate(self.schedulers))
        return [(rank, events) for rank, events in taken if events]

    def take_tier_events(self) -> RankTierEvents:
        if not self._has_tiers:
            return []
        taken = ((rank, scheduler.take_tier_events()) for rank, scheduler in enumerate(self.schedulers))
        return [(rank, events) for rank, events in taken if events]

    def record_tier_events(self) -> None:
        """Have `take_tier_events` begin with all that the tiers hold."""
        for scheduler in self.schedulers:
            if scheduler.tiers is not None:
                scheduler.tiers.announced = True

    def record_events(self) -> None:
        """Keep what happens to blocks from now on for `take_events`."""
        for scheduler in self.schedulers:
            scheduler.pool.record_events()

    def measure_steps(self) -> None:
        """Have every iteration that is not folded say what each busy rank computed."""
        self._measures = True
        for scheduler in self.schedulers:
            scheduler.measures_steps = True

    def load(self) -> list[Load]:
        return [scheduler.load() for scheduler in self.schedulers]

    def _pace(self, busy: list[Scheduler], now: float, until: float, most: int) -> tuple[float, int]:
        """When the last quiet iteration that fits ends, and how many fit; the first one counts in any case."""
        if len(busy) == 1 and most > _FEW:
            return self._pace_of_many(*busy[0].decoding(), now, until, most)
        ends = now
        for step, duration in enumerate(self._slowest(busy, most)):
            if step and ends + duration > until:
                return ends, step
            ends += duration
        return ends, most

    def _begins(self, busy: list[Scheduler], now: float, steps: int) -> Callable[[int], float]:
        """When each of `steps` quiet iterations begins."""
        if len(busy) == 1:
            count, context = busy[0].decoding()
            return lambda step: now + self._run_seconds(count, context, step)
        return list(accumulate(self._slowest(busy, steps), initial=now)).__getitem__

    def _slowest(self, busy: list[Scheduler], steps: int) -> Iterator[float]:
        """How long each of the next quiet iterations takes."""
        durations = [self._durations(scheduler, steps) for scheduler in busy]
        return map(max, *durations) if len(durations) > 1 else durations[0]

    def _pace_of_many(self, count: int, context: int, now: float, until: float, most: int) -> tuple[float, int]:
        """The same by bisection: a run's time is known without adding up its steps."""
        ends = now + self._run_seconds(count, context, most)
        if ends <= until:
            return ends, most
        low, high = 1, most
        while high - low > 1:
            middle = (low + high) // 2
            if now + self._run_seconds(count, context, middle) > until:
                high = middle
            else:
                low = middle
        return now + self._run_seconds(count, context, low), low

    def _run_seconds(self, count: int, context: int, steps: int) -> float:
        """The seconds that `steps` quiet iterations take.

        Sequences that share blocks read more than the cache holds; past its capacity the curve has a bend.
        """
        before = min(steps, max(0, -((context - self._capacity) // count)))
        return self._smooth_seconds(count, context, before) + self._smooth_seconds(
            count, context + count * before, steps - before
        )

    def _smooth_seconds(self, count: int, context: int, steps: int) -> float:
        """The same on one side of the bend: exact where the time of one is at most a quadratic of the context."""
        decode, last = self._timing.decode, steps - 1
        if last <= 0:
            return steps * decode(count, context)
        outer = 1 / 6 + 1 / (3 * last)
        ends = decode(count, context) + decode(count, context + count * last)
        return steps * (outer * ends + (1 - 2 * outer) * decode(count, context + count * last / 2))

    def _durations(self, scheduler: Scheduler, steps: int) -> Iterator[float]:
        """How long each of the next quiet iterations of one rank takes; each adds a token to every context."""
        count, context = scheduler.decoding()
        return map(self._timing.decode, repeat(count), range(context, context + count * steps, count))

    def _gather(self, results: list[StepResult], ends: float, steps: int) -> Iteration:
        if len(results) == 1:
            answered, finished = results[0].answered, results[0].finished
        else:
            answered = [sequence for result in results for sequence in result.answered]
            finished = [done for result in results for done in result.finished]
        for done in finished:
            del self._rank_of[done.request_id]
        return Iteration(ends, steps, answered, finished, self.take_events(), self.take_tier_events())
