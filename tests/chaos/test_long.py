"""`make chaos`: minutes of faults against four workers and two frontends, over each network."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, client_session, seed_of_run
from chaos.faults import LINK, PROCESS, Fault, FaultKind, schedule
from chaos.fleet import Fleet
from chaos.questions import questions
from support.services import Etcd, Nats

pytestmark = pytest.mark.chaos

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "1250"))
"""Of most runs of mixed requests."""
AT_ONCE = 24
WORKERS = 4
MOCKER = ("--model-path", "tiny", "--migration-limit", "5", "--decode-speedup-ratio", "0.2")
"""Slow enough that most answers are under way when a worker is killed."""
SPLIT = (*MOCKER, "--block-size", "16", "--disaggregation-mode")
ALWAYS = ("--router-conditional-disagg-config", '{"policy": "always"}')
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


@pytest.mark.parametrize("network", ["etcd", "nats"])
async def test_workers_of_both_roles_and_their_links_fail_and_nothing_stays_held(
    tmp_path: Path, network: str, request: pytest.FixtureRequest
) -> None:
    seed = seed_of_run(7)
    kinds = (*PROCESS, *LINK) if network == "etcd" else PROCESS
    async with Fleet(tmp_path, **{network: request.getfixturevalue(network)}) as fleet:
        await fleet.start_proxied(2, (*SPLIT, "prefill"), [])
        await fleet.start_proxied(2, (*SPLIT, "decode"), [["--router-mode", "kv", *ALWAYS]] * 2)
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        outcome = await run.run(4 * REQUESTS // 5, AT_ONCE, schedule(seed, kinds, WORKERS), every=2.0)
        outcome.check()
        await fleet.until_nothing_is_held()


async def test_the_only_prefill_worker_leaves_and_returns_under_load_and_splitting_resumes(tmp_path: Path) -> None:
    seed = seed_of_run(8)
    async with Fleet(tmp_path) as fleet, client_session() as session:
        await fleet.start_proxied(1, (*SPLIT, "prefill"), [])
        await fleet.start_proxied(1, (*SPLIT, "decode"), [["--router-mode", "kv", *ALWAYS]])
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        await run.undisturbed(session)
        for kind in (FaultKind.DRAIN, FaultKind.KILL):
            asking = asyncio.create_task(run.ask_all(session, REQUESTS // 6, AT_ONCE))
            await fleet.do(Fault(kind, 0, 0.0))
            await asking
            await fleet.recovered()
            await fleet.until_nothing_is_held()  # and nothing cached, which would not be computed again
            before = await fleet.splits()
            await run.ask_all(session, 24, AT_ONCE)
            assert await fleet.splits() > before
        await fleet.until_nothing_is_held()
        run.outcome.check()
