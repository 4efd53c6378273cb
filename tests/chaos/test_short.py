"""A short disturbed run for every day; `make chaos` runs the long ones."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from chaos.disturbed import DisturbedRun, seed_of_run
from chaos.faults import LINK, MACHINE, PROCESS, FaultKind, schedule
from chaos.fleet import Fleet
from chaos.questions import questions

MOCKER = ("--model-path", "tiny", "--migration-limit", "100")
PATIENT = ("--migration-wait-secs", "120")


async def test_no_answer_changes_while_workers_and_their_connections_fail(tmp_path: Path) -> None:
    seed = seed_of_run(14)
    kinds = (*LINK, *MACHINE, FaultKind.KILL, FaultKind.STOP)
    async with Fleet(tmp_path) as fleet:
        await fleet.start_proxied(2, MOCKER, [PATIENT])
        run = DisturbedRun(fleet, questions(seed, 16, "tiny"), seed)
        outcome = await run.run(120, 12, schedule(seed, kinds, workers=2, longest=1.0), every=0.3)
        outcome.check()
        assert outcome.faults


def test_a_seed_decides_all_faults_and_questions() -> None:
    for make in (lambda seed: list(islice(schedule(seed, PROCESS, 4), 50)), lambda seed: questions(seed, 50, "tiny")):
        assert make(1) == make(1)
        assert make(1) != make(2)
