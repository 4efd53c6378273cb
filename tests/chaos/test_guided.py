"""`make chaos`: guided answers while the workers of engines that can guide are killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, seed_of_run
from chaos.faults import FaultKind, schedule
from chaos.fleet import Fleet
from chaos.questions import questions

pytestmark = pytest.mark.chaos

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "1250")) // 5


@pytest.mark.parametrize("engine", ["mistralrs", "llamacpp"])
async def test_no_guided_answer_is_lost_or_changed_while_workers_are_killed(tmp_path: Path, engine: str) -> None:
    seed = seed_of_run(5)
    async with Fleet(tmp_path, RAYON_NUM_THREADS="1") as fleet:
        await fleet.start(
            2, ["-m", "dynamo.worker", engine, "--migration-limit", "5"], [["--router-mode", "round-robin"]] * 2
        )
        run = DisturbedRun(fleet, questions(seed, 8, "tiny", guided=1.0), seed)
        outcome = await run.run(REQUESTS, 4, schedule(seed, [FaultKind.KILL], 2), every=3.0)
        outcome.check()
