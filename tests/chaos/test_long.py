"""`make chaos`: minutes of faults against four workers and two frontends, over each network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, seed_of_run
from chaos.faults import LINK, PROCESS, FaultKind, schedule
from chaos.fleet import Fleet
from chaos.questions import questions
from support.services import Etcd, Nats

pytestmark = pytest.mark.chaos

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "1250"))
"""Of each run; there are four of mixed requests."""
AT_ONCE = 24
WORKERS = 4
MOCKER = ("--model-path", "tiny", "--migration-limit", "5", "--decode-speedup-ratio", "0.2")
"""Slow enough that most answers are under way when a worker is killed."""
TEN_TIMES_SLOWER = (*MOCKER[:-1], "0.02")


def frontends(mode: str) -> list[list[str]]:
    return [["--router-mode", mode]] * 2


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
async def test_a_kill_every_three_seconds_over_tcp_and_etcd(tmp_path: Path, etcd: Etcd, mode: str) -> None:
    seed = seed_of_run(1)
    async with Fleet(tmp_path, etcd=etcd) as fleet:
        await fleet.start(WORKERS, ["-m", "dynamo.mocker", *MOCKER], frontends(mode))
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        outcome = await run.run(REQUESTS, AT_ONCE, schedule(seed, [FaultKind.KILL], WORKERS), every=3.0)
        outcome.check()


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
async def test_a_kill_every_three_seconds_over_nats(tmp_path: Path, nats: Nats, mode: str) -> None:
    seed = seed_of_run(2)
    async with Fleet(tmp_path, nats=nats) as fleet:
        await fleet.start(WORKERS, ["-m", "dynamo.mocker", *MOCKER], frontends(mode))
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        outcome = await run.run(REQUESTS, AT_ONCE, schedule(seed, [FaultKind.KILL], WORKERS), every=3.0)
        outcome.check()


async def test_processes_links_and_etcd_fail_in_any_order_beside_a_slow_worker(tmp_path: Path, etcd: Etcd) -> None:
    seed = seed_of_run(3)
    kinds = (*PROCESS, *LINK, FaultKind.ETCD)
    async with Fleet(tmp_path, etcd=etcd) as fleet:
        await fleet.start_proxied(1, TEN_TIMES_SLOWER, [])
        await fleet.start_proxied(WORKERS - 1, MOCKER, frontends("kv"))
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        outcome = await run.run(REQUESTS, AT_ONCE, schedule(seed, kinds, WORKERS), every=2.0)
        outcome.check()


async def test_processes_and_nats_fail_in_any_order(tmp_path: Path, nats: Nats) -> None:
    seed = seed_of_run(4)
    async with Fleet(tmp_path, nats=nats) as fleet:
        await fleet.start(WORKERS, ["-m", "dynamo.mocker", *MOCKER], frontends("round-robin"))
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        faults = schedule(seed, (*PROCESS, FaultKind.NATS), WORKERS)
        outcome = await run.run(REQUESTS, AT_ONCE, faults, every=3.0)
        outcome.check()
