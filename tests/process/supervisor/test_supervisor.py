"""Supervised processes are real and small: shells, and one Python program that takes a moment to start."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dynamo.process.readiness import report_ready
from dynamo.process.supervisor.output import PrefixedOutput
from dynamo.protocols.errors import StartError
from dynamo.supervisor import ComponentSpec, Deployment, ProcessState, Supervisor
from support.waiting import until

SERVES = "trap 'exit 0' TERM; echo serving; while :; do sleep 0.02; done"
"""A shell runs its trap only between commands, so it must not sleep long."""


def shell(name: str, script: str, *, replicas: int = 1, kind: str = "command") -> ComponentSpec:
    return ComponentSpec(name=name, kind=kind, words=("sh", "-c", script), replicas=replicas)


@asynccontextmanager
async def supervised(
    *specs: ComponentSpec, drain_seconds: float = 60.0, colour: bool = False
) -> AsyncIterator[tuple[Supervisor, io.StringIO]]:
    output = io.StringIO()
    deployment = Deployment(components=specs, drain_seconds=drain_seconds)
    supervisor = Supervisor(
        deployment, {"PATH": os.environ["PATH"]}, PrefixedOutput(output, colour=colour), first_pause=0.01
    )
    async with supervisor:
        await supervisor.start_all()
        yield supervisor, output


async def test_lines_have_the_name_of_their_process_before_them() -> None:
    async with supervised(shell("a", SERVES), shell("worker", SERVES, replicas=2)) as (supervisor, output):
        await supervisor.until_ready()
        await until(lambda: output.getvalue().count("serving") == 3)
    lines = output.getvalue().splitlines()
    assert {"a        | serving", "worker-0 | serving", "worker-1 | serving"} <= set(lines)


async def test_each_component_has_a_colour_of_its_own_on_a_terminal() -> None:
    async with supervised(shell("a", SERVES), shell("b", SERVES), colour=True) as (_, output):
        await until(lambda: output.getvalue().count("serving") == 2)
    served = [line for line in output.getvalue().splitlines() if line.endswith("serving")]
    assert all(line.startswith("\x1b[") for line in served)
    assert len({line.partition("m")[0] for line in served}) == 2


async def test_the_requests_of_a_worker_may_take_nearly_as_long_as_it_may_drain() -> None:
    said = "echo requests have $DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT s; " + SERVES
    async with supervised(shell("a", said), drain_seconds=600) as (_, output):
        await until(lambda: "requests have 500 s" in output.getvalue())
    own = ComponentSpec(
        name="a", kind="command", words=("sh", "-c", said), env={"DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": "7"}
    )
    async with supervised(own, drain_seconds=600) as (_, output):
        await until(lambda: "requests have 7 s" in output.getvalue())


async def test_a_process_that_dies_is_started_again() -> None:
    async with supervised(shell("a", SERVES)) as (supervisor, output):
        await supervisor.until_ready()
        (process,) = supervisor.processes("a")
        first = process.pid
        assert first
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.restarts == 1 and process.state is ProcessState.Ready)
        assert process.pid != first
    assert "a | was ended by SIGKILL; starting it again in 0.01 s" in output.getvalue().replace("a     |", "a |")


async def test_a_process_that_is_never_ready_is_given_up_with_its_last_line() -> None:
    async with supervised(shell("a", "echo no memory; exit 7", kind="worker")) as (supervisor, _):
        with pytest.raises(
            StartError, match="a ended with 7 3 times in a row before it was ready; its last line: no memory"
        ):
            await supervisor.until_ready()


async def test_a_wrong_flag_is_not_tried_again() -> None:
    async with supervised(shell("a", "echo error: unknown flag; exit 2", kind="worker")) as (supervisor, _):
        with pytest.raises(StartError, match="a ended with 2 before it was ready; its last line: error: unknown flag"):
            await supervisor.until_ready()


async def test_a_program_that_cannot_be_started_is_named() -> None:
    spec = ComponentSpec(name="a", kind="worker", words=("/nonexistent/program",))
    async with supervised(spec) as (supervisor, _):
        with pytest.raises(StartError, match="cannot start /nonexistent/program: No such file"):
            await supervisor.until_ready()


async def test_components_drain_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    script = f"trap 'echo $0 >> {journal}; exit 0' TERM; echo serving; while :; do sleep 0.02; done"
    specs = [
        ComponentSpec(name=name, kind="command", words=("sh", "-c", script, name)) for name in ("worker", "frontend")
    ]
    async with supervised(*specs) as (supervisor, output):
        await until(lambda: output.getvalue().count("serving") == 2)
        await supervisor.drain()
    assert journal.read_text().split() == ["frontend", "worker"]


async def test_a_process_that_ignores_sigterm_is_killed_after_its_time() -> None:
    stubborn = "trap '' TERM; echo serving; while :; do sleep 0.02; done"
    async with supervised(shell("a", stubborn), drain_seconds=0.05) as (_, output):
        await until(lambda: "| serving" in output.getvalue())
    assert "a did not end within 0.05 s and is killed" in output.getvalue()


async def test_kill_ends_a_drain_at_once() -> None:
    stubborn = "trap '' TERM; echo serving; while :; do sleep 0.02; done"
    async with supervised(shell("a", stubborn), shell("b", stubborn)) as (supervisor, output):
        await until(lambda: output.getvalue().count("| serving") == 2)
        draining = asyncio.create_task(supervisor.drain())
        await until(lambda: not supervisor.processes("b"))
        supervisor.kill()
        await draining


async def test_a_component_is_scaled_up_and_down() -> None:
    async with supervised(shell("a", SERVES)) as (supervisor, output):
        await supervisor.until_ready()
        await supervisor.scale("a", 3)
        await supervisor.until_ready()
        await until(lambda: output.getvalue().count("| serving") == 3)
        assert len(supervisor.processes("a")) == 3
        kept = supervisor.processes("a")[0].pid
        await supervisor.scale("a", 1)
        assert [process.pid for process in supervisor.processes("a")] == [kept]
        with pytest.raises(ValueError, match="a cannot have -1 replicas"):
            await supervisor.scale("a", -1)


async def test_a_process_is_ready_when_it_says_so(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"""
import os, time
from dynamo.process.readiness import report_ready
print("up")
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
report_ready(os.environ)
time.sleep(1000)
"""
    spec = ComponentSpec(
        name="a", kind="worker", words=(sys.executable, "-c", waits), env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    async with supervised(spec) as (supervisor, output):
        await until(lambda: "| up" in output.getvalue())
        assert supervisor.processes("a")[0].state is ProcessState.Starting
        go.touch()
        await supervisor.until_ready()


def test_reporting_ready_without_a_supervisor_does_nothing(tmp_path: Path) -> None:
    report_ready({})
    report_ready({"NOTIFY_SOCKET": str(tmp_path / "gone")})


async def test_a_line_without_end_is_passed_on_in_pieces() -> None:
    async with supervised(shell("a", "head -c 200000 /dev/zero | tr '\\0' x; echo; echo; echo end; " + SERVES)) as (
        _,
        output,
    ):
        await until(lambda: "| end" in output.getvalue())
    assert output.getvalue().count("x") == 200000
