"""Two prefill and two decode workers that fail at each moment of a hand-off: nobody notices, and nothing stays held.

A short run for every day; `make chaos` asks 2,000 requests.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, client_session, seed_of_run
from chaos.faults import Fault, FaultKind
from chaos.fleet import Fleet
from chaos.questions import questions
from support.stack import Process

REQUESTS = 8 * int(os.environ.get("CHAOS_REQUESTS", "1250")) // 5
SPLIT = (
    "--model-path", "tiny", "--migration-limit", "100", "--block-size", "16", "--num-gpu-blocks-override", "768",
    "--disaggregation-mode",
)  # fmt: skip
"""A cache of fewer blocks than the questions have, so that prompts are computed again and again."""
FRONTEND = (
    "--router-mode", "kv", "--migration-wait-secs", "120",
    "--router-conditional-disagg-config", '{"policy": "always"}',
)  # fmt: skip
PREFILLS, DECODES = (0, 1), (2, 3)
KILLS = (Fault(FaultKind.KILL, PREFILLS[0], 0.0), Fault(FaultKind.KILL, DECODES[0], 0.0))
ROUND = (*KILLS, Fault(FaultKind.RESET, PREFILLS[1], 0.0), Fault(FaultKind.DRAIN, PREFILLS[1], 0.0))
MOMENTS = {
    "no prefill: ": "a prefill worker failed before its answer",
    "as it could not be fetched: ": "a prefill worker failed, or its link, after its answer",
    "moving it to another": "a decode worker failed",
}
"""What frontends and decode workers log of each."""
LINK_SECONDS = 0.03
"""What each message of a prefill worker takes longer, so that faults meet hand-offs under way."""


class RoleFaults:
    """Rounds of faults, each of which ends with both prefill workers leaving at once and coming back."""

    def __init__(self, fleet: Fleet, faults: Sequence[Fault], pause: float) -> None:
        self._fleet = fleet
        self._faults = faults
        self._pause = pause
        self._processes: set[Process] = set()
        self.absences = 0

    async def round(self) -> None:
        for fault in self._faults:
            await asyncio.sleep(self._pause)
            await self._do(fault)
        await self._fleet.recovered()
        kind = (FaultKind.KILL, FaultKind.DRAIN)[self.absences % 2]
        for number in PREFILLS:
            await self._do(Fault(kind, number, 0.0))
        await self._fleet.recovered()
        self.absences += 1

    def moments(self) -> Counter[str]:
        """How often each was logged so far."""
        logs = [*self._processes, *(worker.process for worker in self._fleet.workers)]
        logs += [frontend.process for frontend in self._fleet.frontends]
        lines = [line for process in set(logs) for line in process.lines]
        return Counter(name for line in lines for text, name in MOMENTS.items() if text in line)

    async def _do(self, fault: Fault) -> None:
        self._processes.update(worker.process for worker in self._fleet.workers)
        for number in PREFILLS:
            proxy = self._fleet.workers[number].proxy
            assert proxy
            proxy.delay = LINK_SECONDS
        await self._fleet.do(fault)


async def disturbed(fleet: Fleet, faults: RoleFaults, requests: int, at_once: int, rounds: int, met: int) -> None:
    """Ask `requests` questions, and more until `rounds` are done and `met` moments were met."""
    seed = seed_of_run(15)
    run = DisturbedRun(fleet, questions(seed, 128, "tiny"), seed)

    async def disturb() -> None:
        while faults.absences < rounds or len(faults.moments()) < met:
            await faults.round()

    async with client_session() as session:
        await run.undisturbed(session)
        disturbing = asyncio.create_task(disturb())
        try:
            await run.ask_all(session, requests, at_once)
            while not disturbing.done():
                await run.ask_all(session, at_once, at_once // 4)
            await disturbing
        finally:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
        run.outcome.faults, run.outcome.moved = fleet.faults_done, await fleet.migrations()
        met_now = ", ".join(f"{name}: {count}" for name, count in faults.moments().items())
        print(f"\n{run.outcome}\nboth prefill workers away: {faults.absences}; {met_now}", flush=True)
        await fleet.until_nothing_is_held()  # and nothing cached, which would not be computed again
        before = await fleet.splits()
        await run.ask_all(session, at_once, at_once)
        assert await fleet.splits() > before
    run.outcome.check()
    assert run.outcome.answered >= requests
    await fleet.until_nothing_is_held()


async def test_no_answer_is_lost_or_changed_while_workers_of_both_roles_fail(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.start_proxied(len(PREFILLS), (*SPLIT, "prefill"), [])
        await fleet.start_proxied(len(DECODES), (*SPLIT, "decode"), [FRONTEND])
        await disturbed(fleet, RoleFaults(fleet, KILLS, 0.1), 60, 8, rounds=1, met=0)


@pytest.mark.chaos
async def test_2000_requests_while_workers_of_both_roles_fail_at_each_moment_of_a_hand_off(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.start_proxied(len(PREFILLS), (*SPLIT, "prefill"), [])
        await fleet.start_proxied(len(DECODES), (*SPLIT, "decode"), [FRONTEND] * 2)
        await disturbed(fleet, RoleFaults(fleet, ROUND, 0.5), REQUESTS, 24, rounds=4, met=len(MOMENTS))
