"""`make soak MINUTES=…`: what a frontend and a worker hold must not grow with the requests they have answered."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, client_session, seed_of_run
from chaos.faults import FaultKind, schedule
from chaos.fleet import SERVING, Fleet
from chaos.questions import questions

pytestmark = pytest.mark.chaos

MINUTES = float(os.environ.get("MINUTES", "15"))
REQUESTS_PER_SECOND = float(os.environ.get("SOAK_REQUESTS_PER_SECOND", "inf"))
"""At most; as fast as 16 clients can ask, if it is not given."""
KILL_SECONDS = float(os.environ.get("SOAK_KILL_SECONDS", "10"))
SAMPLE_SECONDS = 60.0
GROWTH = 1.1
"""The memory in the second half may be this many times that in the first."""
WORKER = ("-m", "dynamo.mocker", "--model-path", "tiny", "--migration-limit", "5")


class Held:
    """What a process holds, as the kernel counts it."""

    def __init__(self, pid: int) -> None:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.megabytes = int(status["VmRSS"].split()[0]) / 1024
        self.threads = int(status["Threads"])
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))

    def __str__(self) -> str:
        return f"{self.megabytes:5.1f} MB {self.descriptors:4} descriptors {self.threads:3} threads"


def check_flat(rows: Sequence[Held]) -> None:
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert max(row.megabytes for row in second) <= GROWTH * max(row.megabytes for row in first)
    assert max(row.descriptors for row in second) <= max(row.descriptors for row in first) + 8
    assert max(row.threads for row in second) <= max(row.threads for row in first) + 2


async def test_memory_descriptors_and_threads_stay_flat(tmp_path: Path) -> None:
    seed, samples = seed_of_run(6), list[tuple[Held, Held]]()
    async with Fleet(tmp_path) as fleet, client_session() as session:
        await fleet.start(3, WORKER, [[]])
        lasting = await fleet.stack.python(*WORKER)
        await lasting.line(SERVING)
        await fleet.frontends[0].until_instances(4)
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        await run.undisturbed(session)
        disturbing = asyncio.create_task(run.disturb(schedule(seed, [FaultKind.KILL], 3), KILL_SECONDS))
        begun = time.monotonic()
        asking = asyncio.create_task(run.ask_for(session, 60 * MINUTES, 16, REQUESTS_PER_SECOND))
        print("\n  s  answered  failed  kills  frontend | a worker that is never killed")
        while not asking.done() or len(samples) < 4:
            await asyncio.wait([asking], timeout=SAMPLE_SECONDS)
            held = Held(fleet.frontends[0].process.child.pid), Held(lasting.child.pid)
            samples.append(held)
            outcome = run.outcome
            print(
                f"{time.monotonic() - begun:5.0f} {outcome.answered:7} {len(outcome.failed):3} "
                f"{fleet.faults_done[FaultKind.KILL]:5}  {held[0]} | {held[1]}",
                flush=True,
            )
        await asking
        assert not disturbing.done(), disturbing.exception()
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        run.outcome.check()
    check_flat([frontend for frontend, _ in samples])
    check_flat([worker for _, worker in samples])
