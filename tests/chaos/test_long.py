"""`make chaos`: minutes of faults against four workers and two frontends, over each network."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from chaos.disturbed import DisturbedRun, client_session, seed_of_run
from chaos.faults import LINK, MACHINE, PROCESS, Fault, FaultKind, schedule
from chaos.fleet import Fleet
from chaos.questions import clear, questions
from support.hosts import cannot_make_hosts, this_thread_on, two_hosts
from support.services import Etcd, Nats, free_port
from support.stack import SOURCE

pytestmark = pytest.mark.chaos

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "1250"))
"""How many requests most runs of mixed ones have."""
SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
"""The run with a kill every three seconds asks its requests again and again for so long."""
NATS_MINUTES = float(os.environ.get("CHAOS_NATS_MINUTES", "5"))
AT_ONCE = 24
WORKERS = 4
MOCKER = ("--model-path", "tiny", "--migration-limit", "5", "--decode-speedup-ratio", "0.2")
"""Slow enough that most answers are under way when a worker is killed."""
LLAMACPP = ("-m", "dynamo.worker", "llamacpp", "--migration-limit", "5")
SPLIT = (*MOCKER, "--block-size", "16", "--disaggregation-mode")
ALWAYS = ("--router-conditional-disagg-config", '{"policy": "always"}')
TEN_TIMES_SLOWER = (*MOCKER[:-1], "0.02")


def frontends(mode: str) -> list[list[str]]:
    return [["--router-mode", mode]] * 2


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
@pytest.mark.parametrize("network", ["etcd", "nats"])
async def test_a_kill_every_three_seconds(
    tmp_path: Path, network: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """Over TCP with etcd, and over NATS; with an engine that can guide and tells routers what it has cached."""
    seed = seed_of_run(1)
    async with Fleet(tmp_path, **{network: request.getfixturevalue(network)}) as fleet:
        await fleet.start(WORKERS, LLAMACPP, frontends(mode), forked=True)
        async with client_session() as session:
            drawn = questions(seed, 96, "tiny", guided=0.2, sampled=False)
            pool = await clear(session, fleet.frontends[0].url, drawn)
        print(f"{len(pool)} questions with a clear answer")
        run = DisturbedRun(fleet, pool, seed)
        kills = schedule(seed, [FaultKind.KILL], WORKERS)
        outcome = await run.run(REQUESTS, AT_ONCE, kills, every=3.0, seconds=SECONDS)
        outcome.check()


async def test_processes_links_and_etcd_fail_in_any_order_beside_a_slow_worker(tmp_path: Path, etcd: Etcd) -> None:
    seed = seed_of_run(3)
    kinds = (*PROCESS, *LINK, *MACHINE, FaultKind.ETCD)
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


async def test_nats_is_restarted_every_ten_seconds(tmp_path: Path, nats: Nats) -> None:
    seed = seed_of_run(7)
    async with Fleet(tmp_path, nats=nats) as fleet:
        await fleet.start(WORKERS, ["-m", "dynamo.mocker", *MOCKER], frontends("round-robin"))
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        faults = schedule(seed, [FaultKind.NATS], WORKERS)
        outcome = await run.run(REQUESTS // 5, AT_ONCE, faults, every=10.0, seconds=60 * NATS_MINUTES)
        outcome.check()


@pytest.mark.parametrize("older", ["workers", "frontends"])
async def test_two_builds_serve_together(tmp_path: Path, older: str) -> None:
    """The older build is that of the wire format's last change."""
    source = older_source(tmp_path / "older")
    here, there = dict[str, str](), {"PYTHONPATH": str(source)}
    seed = seed_of_run(8)
    async with Fleet(tmp_path) as fleet:
        worker = ["-m", "dynamo.mocker", *MOCKER]
        if older == "workers":
            await fleet.start(2, worker, frontends("kv"), here)
            await fleet.start(2, worker, [], there)
        else:
            await fleet.start(3, worker, [["--router-mode", "kv"]], here)
            await fleet.start(0, worker, [["--router-mode", "kv"]], there)
        run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
        faults = schedule(seed, [FaultKind.KILL, FaultKind.DRAIN], len(fleet.workers))
        outcome = await run.run(REQUESTS // 5, AT_ONCE, faults, every=3.0)
        outcome.check()


async def test_the_cable_between_two_hosts_is_cut(tmp_path: Path) -> None:
    if why := cannot_make_hosts():
        print(f"NOT RUN: partitions between hosts ({why})")
        pytest.skip(why)
    seed = seed_of_run(9)
    with (
        two_hosts() as (here, there),
        this_thread_on(here),
        Etcd(tmp_path / "etcd", free_port(), here.address) as etcd,
    ):
        async with Fleet(tmp_path, etcd=etcd, DYN_PLANE_TOKEN="of these hosts") as fleet:
            fleet.other_host = there
            worker = ["-m", "dynamo.mocker", *MOCKER]
            await fleet.start(2, worker, frontends("kv"), {"DYN_TCP_RPC_HOST": here.address})
            beyond = {"DYN_TCP_RPC_HOST": there.address, "interpreter": "ip"}
            await fleet.start(2, [*there.inside(sys.executable)[1:], *worker], [], beyond)
            run = DisturbedRun(fleet, questions(seed, 64, "tiny"), seed)
            faults = schedule(seed, [FaultKind.PARTITION], 4, longest=20.0)
            outcome = await run.run(REQUESTS // 5, AT_ONCE, faults, every=3.0, seconds=60.0)
            outcome.check()


def older_source(folder: Path) -> Path:
    """The source of the build with which the wire format came."""
    git = ["git", "-C", str(SOURCE)]
    wire = str(SOURCE / "dynamo/runtime/plane/frames.py")
    found = subprocess.run([*git, "log", "-1", "--format=%H", "--", wire], capture_output=True, text=True, check=False)
    packed = subprocess.run(
        [*git, "archive", "--format=tar", found.stdout.strip() or "none", "."], capture_output=True, check=False
    )
    if packed.returncode:
        print("NOT RUN: two builds together (there is no git history)")
        pytest.skip("there is no git history")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


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
