"""What a process shows of its inside."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.process.threads import in_thread
from dynamo.runtime.inspection import Inspection, InspectionRequest, Row, slices
from dynamo.runtime.inspection.facts import shown_command
from dynamo.runtime.inspection.inspection import encoded
from dynamo.runtime.inspection.listener import InspectionListener
from dynamo.runtime.inspection.place import inspection_folder, open_folder, processes, socket_path
from dynamo.runtime.inspection.slices import SLICE_SECONDS, SlicedWork
from dynamo.runtime.logging import set_filter
from support.waiting import PATIENCE, until


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A socket's path must be short, and a test's own folder may not be."""
    with tempfile.TemporaryDirectory(prefix="dyn") as folder:
        yield Path(folder)


async def ask(inspection: Inspection, **fields: Any) -> list[Row]:
    return await in_thread(lambda: list(inspection.answer(InspectionRequest(**fields))))


async def following() -> Inspection:
    inspection = Inspection()
    inspection.follow(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return inspection


async def test_tasks_that_wait_in_one_place_are_one_row_that_names_it() -> None:
    inspection, event = await following(), asyncio.Event()

    async def waits_for_the_event() -> None:
        await event.wait()

    tasks = [asyncio.create_task(waits_for_the_event()) for _ in range(50)]
    await asyncio.sleep(0)
    [_, table] = await ask(inspection, tables=("tasks",))
    event.set()
    await asyncio.gather(*tasks)
    [row] = [row for row in table["rows"] if row["count"] == 50]
    assert row["task"].endswith("waits_for_the_event")
    assert row["at"]["function"].endswith("waits_for_the_event")
    assert row["for"] == "Event.wait"


async def test_rows_of_many_sources_are_cut_and_counted() -> None:
    inspection = await following()
    inspection.add("streams", lambda: ({"n": n} for n in range(7)))
    remove = inspection.add("streams", lambda: ({"n": n} for n in range(100)))
    [_, table] = await ask(inspection, tables=("streams",), most=10)
    assert (len(table["rows"]), table["total"]) == (10, 107)
    remove()
    [_, table] = await ask(inspection, tables=("streams",), most=10)
    assert (len(table["rows"]), table["total"]) == (7, 7)


async def test_an_unknown_table_is_refused_with_those_that_there_are() -> None:
    inspection = await following()
    with pytest.raises(ValueError, match="no table 'beans' in this process; it has tasks"):
        await ask(inspection, tables=("beans",))


async def test_long_work_leaves_the_loop_between_slices() -> None:
    """With a clock by which each row takes a whole slice, other callbacks run after every row."""
    ticks = itertools.count()
    others = 0

    def other() -> None:
        nonlocal others
        others += 1
        if not work.done.is_set():
            asyncio.get_running_loop().call_soon(other)

    def rows() -> Iterator[int]:
        yield from range(20)

    work = SlicedWork(asyncio.get_running_loop(), rows, clock=lambda: 2 * next(ticks) * SLICE_SECONDS)
    asyncio.get_running_loop().call_soon(other)
    await until(work.done.is_set)
    assert work.results == list(range(20))
    assert work.turns >= 20
    assert others >= 19


def test_a_thread_beside_the_loop_sleeps_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slices, "sleep", slept.append)
    ticks = itertools.count()
    assert list(slices.paced(range(9), clock=lambda: next(ticks) * SLICE_SECONDS / 2.5)) == list(range(9))
    assert slept == [SLICE_SECONDS] * 3


async def test_a_failing_table_fails_the_answer_and_nothing_else() -> None:
    inspection = await following()

    def broken() -> Iterator[Row]:
        yield {"n": 1}
        raise RuntimeError("broken table")

    inspection.add("queues", broken)
    *_, last = await in_thread(lambda: list(encoded(inspection, b'{"tables": ["queues"]}')))
    assert last == b'{"kind":"error","error":"RuntimeError: broken table"}\n'
    assert [part["kind"] for part in await ask(inspection, tables=("tasks",))] == ["process", "table"]


@pytest.mark.parametrize(
    "data", [b"\xff", b"[]", b"{", b'{"what": "kill"}', b'{"most": 0}', b'{"seconds": 1e9}', b'{"else": 1}', b"null"]
)
def test_malformed_requests_are_refused(data: bytes) -> None:
    [line] = encoded(Inspection(), data)
    assert line.startswith(b'{"kind":"error"')


def test_a_blocked_loop_is_named_by_the_frame_that_holds_it() -> None:
    inspection, started, release = Inspection(), threading.Event(), threading.Event()

    def deeper() -> None:
        started.set()
        release.wait(PATIENCE)

    async def handler_that_blocks() -> None:
        deeper()

    async def main() -> None:
        inspection.follow(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await asyncio.create_task(handler_that_blocks(), name="the task")

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    started.wait(PATIENCE)
    process, blocked = inspection.answer(InspectionRequest())
    release.set()
    thread.join(PATIENCE)
    assert (process["kind"], blocked["kind"], blocked["task"]) == ("process", "blocked", "the task")
    functions = [place["function"].rpartition(".")[2] for place in blocked["stack"]]
    assert functions[:2] == ["handler_that_blocks", "deeper"]
    assert blocked["culprit"] == blocked["stack"][1]


async def test_a_profile_counts_processor_time_by_function() -> None:
    end = threading.Event()

    def counts() -> None:
        while not end.is_set():
            sum(range(1000))

    thread = threading.Thread(target=counts, name="counting")
    thread.start()
    try:
        spent: dict[str, int] = {}
        while not spent.get("counting"):  # a busy machine may give it no time at all
            [profile] = await ask(Inspection(), what="profile", seconds=0.2)
            spent = profile["threads"]
    finally:
        end.set()
        thread.join()
    assert any("counts" in name for name in profile["total"])
    assert any(stack.startswith("counting;") and "counts" in stack for stack in profile["folded"])


def test_the_stacks_of_all_threads_are_shown_without_values() -> None:
    secret, go = "a prompt", threading.Event()
    thread = threading.Thread(target=lambda words: go.wait(PATIENCE), args=(secret,), name="holder")
    thread.start()
    [line] = encoded(Inspection(), b'{"what": "stacks"}')
    go.set()
    thread.join()
    assert b'"holder"' in line
    assert secret.encode() not in line


def test_log_levels_change_while_the_process_runs() -> None:
    before = set_filter("")
    try:
        assert set_filter("warn,dynamo.router=trace") == "warn,dynamo.router=trace"
        assert logging.getLogger("dynamo.router").isEnabledFor(5)
        assert not logging.getLogger("dynamo.frontend").isEnabledFor(logging.INFO)
        assert set_filter("error") == "error"
        with pytest.raises(ValueError, match="'loud' is not a level"):
            set_filter("dynamo=loud")
        assert set_filter("") == "error"
    finally:
        set_filter(before)


def test_secrets_of_a_command_line_are_not_shown() -> None:
    words = ["dynamo-run", "in=http", "--api-key", "abc", "--plane-token=def", "--http-port", "80"]
    assert shown_command(words) == "dynamo-run in=http --api-key … --plane-token=… --http-port 80"


async def test_only_the_user_can_reach_the_socket_and_it_goes_with_the_process(short_folder: Path) -> None:
    folder = inspection_folder({"XDG_RUNTIME_DIR": str(short_folder)})
    folder.mkdir(mode=0o755)
    listener = InspectionListener(Inspection(), folder)
    listener.start()
    [pid] = processes(folder)
    path = socket_path(folder, pid)
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    await listener.close()
    assert not path.exists()
    assert processes(folder) == []


async def test_a_listing_creates_nothing(short_folder: Path) -> None:
    folder = inspection_folder({"XDG_RUNTIME_DIR": str(short_folder)})
    assert processes(folder) == []
    assert not folder.exists()


@pytest.mark.parametrize("request_", [b"", b'{"what": "profile", "seconds": 300}\n', b'{"what": "objects"}\n'])
async def test_a_closed_listener_leaves_no_thread_although_a_client_waits(request_: bytes, short_folder: Path) -> None:
    before = set(threading.enumerate())
    folder = inspection_folder({"XDG_RUNTIME_DIR": str(short_folder)})
    listener = InspectionListener(Inspection(), folder)
    listener.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(socket_path(folder, os.getpid())))
        client.sendall(request_)
        await until(lambda: any(thread.name == "dynamo-inspect-answer" for thread in threading.enumerate()))
        await listener.close()
        assert not {thread for thread in threading.enumerate() if thread.name.startswith("dynamo-inspect")} - before


async def test_a_process_that_starts_removes_what_killed_ones_left(short_folder: Path) -> None:
    folder = inspection_folder({"XDG_RUNTIME_DIR": str(short_folder)})
    folder.mkdir(mode=0o700)
    other = folder / "other.sock"
    other.touch()
    stale = socket_path(folder, 1)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    listener = InspectionListener(Inspection(), folder)
    listener.start()
    await until(lambda: not stale.exists())
    assert other.exists()
    await listener.close()


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """As someone could put it into the temporary folder first: here as a link, which only its maker can change."""
    folder = inspection_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="not a folder of this user"):
        open_folder(folder)
    assert processes(folder) == []


@pytest.mark.parametrize("runtime", ["x" * 120, "file"])
async def test_a_process_that_cannot_listen_runs_all_the_same(tmp_path: Path, runtime: str) -> None:
    (tmp_path / "file").touch()
    listener = InspectionListener(Inspection(), inspection_folder({"XDG_RUNTIME_DIR": str(tmp_path / runtime)}))
    listener.start()
    await listener.close()
