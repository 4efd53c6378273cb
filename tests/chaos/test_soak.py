"""`make soak MINUTES=…`: what the frontend holds must not grow with the requests it has answered."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, client_session, seed_of_run
from chaos.faults import FaultKind, schedule
from chaos.fleet import Fleet
from chaos.questions import questions

pytestmark = pytest.mark.chaos

MINUTES = float(os.environ.get("MINUTES", "15"))
GROWTH = 1.1
"""The memory in the second half may be this many times that in the first."""


class Held:
    """What a process holds, as the kernel counts it."""

    def __init__(self, pid: int) -> None:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.megabytes = int(status["VmRSS"].split()[0]) / 1024
        self.threads = int(status["Threads"])
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))


async def test_memory_descriptors_and_threads_of_a_frontend_stay_flat(tmp_path: Path) -> None:
    seed, rows = seed_of_run(6), list[Held]()
    async with Fleet(tmp_path) as fleet, client_session() as session:
        await fleet.start(3, ["-m", "dynamo.mocker", "--model-path", "tiny", "--migration-limit", "5"], [[]])
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        await run.undisturbed(session)
        disturbing = asyncio.create_task(run.disturb(schedule(seed, [FaultKind.KILL], 3), 10.0))
        end = time.monotonic() + 60 * MINUTES
        print("\n  answered  failed    MB  descriptors  threads")
        while time.monotonic() < end or len(rows) < 4:
            await run.ask_all(session, 500, 16)
            held = Held(fleet.frontends[0].process.child.pid)
            rows.append(held)
            outcome = run.outcome
            print(
                f"{outcome.answered:10} {len(outcome.failed):7} {held.megabytes:5.0f} "
                f"{held.descriptors:12} {held.threads:8}",
                flush=True,
            )
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        run.outcome.check()
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    assert max(row.megabytes for row in second) <= GROWTH * max(row.megabytes for row in first)
    assert max(row.descriptors for row in second) <= max(row.descriptors for row in first) + 8
    assert max(row.threads for row in second) <= max(row.threads for row in first) + 2
