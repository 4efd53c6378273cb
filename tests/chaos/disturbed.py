"""Clients that ask while faults are done, and what became of their requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from chaos.faults import Fault, FaultKind
from chaos.fleet import Fleet
from chaos.questions import Question, ask, difference


class Outcome:
    """What a disturbed run came to."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.answered = 0
        self.failed: list[str] = []
        """Requests without an answer."""
        self.different: list[str] = []
        """Answers that are not those of the undisturbed run."""
        self.faults: Counter[FaultKind] = Counter()
        self.fault_times: list[float] = []
        self.moved = 0

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind.name.lower()}" for kind, count in sorted(self.faults.items(), key=str))
        counts = f"{self.answered} answered, {len(self.different)} of them differently, {len(self.failed)} failed"
        pauses = [after - before for before, after in itertools.pairwise(self.fault_times)] or [0.0]
        apart = f"{sum(pauses) / len(pauses):.1f} s apart, at most {max(pauses):.1f} s"
        return "\n".join(
            [
                f"seed {self.seed}: {counts}, {self.moved} moved; faults: {faults}; {apart}",
                *self.different[:5],
                *self.failed[:5],
            ]
        )

    def check(self) -> None:
        assert not self.failed, str(self)
        assert not self.different, str(self)


def seed_of_run(default: int) -> int:
    """CHAOS_SEED, to see a failure again, or the default."""
    return int(os.environ.get("CHAOS_SEED", default))


@asynccontextmanager
async def client_session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


class DisturbedRun:
    """Asks each question once while nothing is wrong, then again and again beside faults."""

    def __init__(self, fleet: Fleet, pool: Sequence[Question], seed: int) -> None:
        self._fleet = fleet
        self._pool = pool
        self._undisturbed: list[Any] = []
        self.outcome = Outcome(seed)

    async def undisturbed(self, session: aiohttp.ClientSession) -> None:
        url = self._fleet.frontends[0].url
        self._undisturbed = await asyncio.gather(*(ask(session, url, question) for question in self._pool))

    async def ask_all(self, session: aiohttp.ClientSession, requests: int, at_once: int) -> None:
        """Ask `requests` questions, `at_once` at a time, the frontends in rotation."""
        await self._ask(session, itertools.islice(self._order(), requests), at_once, math.inf)

    async def ask_for(
        self, session: aiohttp.ClientSession, seconds: float, at_once: int, requests_per_second: float
    ) -> None:
        """Ask for so long, not faster than that."""
        end = time.monotonic() + seconds
        order = itertools.takewhile(lambda _: time.monotonic() < end, self._order())
        await self._ask(session, order, at_once, requests_per_second)

    def _order(self) -> Iterator[int]:
        chance = random.Random(f"order {self.outcome.seed}")
        while True:
            yield chance.randrange(len(self._pool))

    async def _ask(
        self, session: aiohttp.ClientSession, order: Iterator[int], at_once: int, requests_per_second: float
    ) -> None:
        urls = itertools.cycle([frontend.url for frontend in self._fleet.frontends])
        pace = at_once / requests_per_second
        await asyncio.gather(*(self._client(session, order, urls, pace) for _ in range(at_once)))

    async def _client(
        self, session: aiohttp.ClientSession, order: Iterator[int], urls: Iterator[str], pace: float
    ) -> None:
        """Ask one after the other, one every `pace` seconds if they are answered that fast."""
        due = time.monotonic() + pace * random.random()
        for number in order:
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            due = max(due + pace, time.monotonic())
            question = self._pool[number]
            try:
                answer = await ask(session, next(urls), question)
            except Exception as error:
                self.outcome.failed.append(f"{question}: {error!r}")
                continue
            self.outcome.answered += 1
            if answer != self._undisturbed[number]:
                self.outcome.different.append(f"{question}: {difference(answer, self._undisturbed[number])}")

    async def disturb(self, faults: Iterator[Fault], pause: float = 0.0) -> None:
        """Do faults, one every `pause` seconds where they can be done that fast, until cancelled."""
        due = time.monotonic()
        for fault in faults:
            due = max(due + pause, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            await self._fleet.do(fault)

    async def run(
        self, requests: int, at_once: int, faults: Iterator[Fault], *, every: float, seconds: float = 0.0
    ) -> Outcome:
        """Ask all until `seconds` have passed, with a fault `every` this many seconds; undo the last ones."""
        async with client_session() as session:
            await self.undisturbed(session)
            disturbing = asyncio.create_task(self.disturb(faults, every))
            try:
                end = time.monotonic() + seconds
                await self.ask_all(session, requests, at_once)
                while time.monotonic() < end:
                    await self.ask_all(session, requests, at_once)
                assert not disturbing.done(), disturbing.exception()
            finally:
                disturbing.cancel()
                await asyncio.gather(disturbing, return_exceptions=True)
            await self._fleet.recovered()
        self.outcome.faults, self.outcome.fault_times = self._fleet.faults_done, self._fleet.fault_times
        self.outcome.moved = await self._fleet.migrations()
        print(f"\n{self.outcome}", flush=True)
        return self.outcome
