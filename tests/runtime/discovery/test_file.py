from __future__ import annotations

import asyncio
import errno
import logging
import multiprocessing
import os
import resource
import shutil
import signal
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery import Delete, DiscoveryError, FileDiscovery, Put
from dynamo.runtime.discovery.folder import Folder, Record, file_name
from support.following import changes_until, holder, snapshot
from support.limits import full_disk, no_more_files
from support.waiting import PATIENCE, until


@pytest.fixture
def kv(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "kv"


async def test_a_killed_process_disappears(kv: Path) -> None:
    frontend = FileDiscovery(kv)
    await frontend.start()
    async with holder("file", str(kv), "v1/worker") as worker, aclosing(frontend.watch("v1/")) as changes:
        assert await snapshot(changes) == [Put("v1/worker", b"held")]
        worker.send_signal(signal.SIGKILL)
        assert await changes_until(changes, Delete("v1/worker")) == [Delete("v1/worker")]
        assert os.listdir(kv / "records") == []
    await frontend.close()


async def test_a_suspended_process_stays(kv: Path) -> None:
    frontend = FileDiscovery(kv)
    await frontend.start()
    async with holder("file", str(kv), "v1/worker") as worker:
        worker.send_signal(signal.SIGSTOP)
        assert await frontend.get_prefix("") == {"v1/worker": b"held"}
        worker.send_signal(signal.SIGCONT)
    await frontend.close()


async def test_a_forked_child_does_not_keep_its_parents_lease(kv: Path) -> None:
    parent, frontend = Folder(kv), FileDiscovery(kv)
    parent.open()
    parent.put("v1/worker", b"1")
    await frontend.start()
    fork = multiprocessing.get_context("fork")
    begun, go = fork.Event(), fork.Event()

    def wait() -> None:
        begun.set()
        go.wait()

    child = fork.Process(target=wait, daemon=True)
    child.start()
    begun.wait()
    assert await frontend.get_prefix("") == {"v1/worker": b"1"}
    parent.release_lease()  # as the kernel does when the parent is killed
    assert await frontend.get_prefix("") == {}
    go.set()
    child.join()
    await frontend.close()


async def test_records_of_a_thousand_leases_are_listed_by_a_fresh_participant(kv: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))  # each lease is an open file
    workers = [FileDiscovery(kv) for _ in range(1000)]
    for number, worker in enumerate(workers):
        await worker.start()
        await worker.put(f"v1/instances/ns/comp/generate/{number:x}", b"%d" % number)
    frontend = FileDiscovery(kv)
    await frontend.start()
    async with aclosing(frontend.watch("v1/instances/")) as changes:
        told = await snapshot(changes)
        assert {int(change.value) for change in told if isinstance(change, Put)} == set(range(1000))
    for worker in workers:
        await worker.close()
    assert await frontend.get_prefix("") == {}
    await frontend.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_many_killed_processes_disappear_together(kv: Path) -> None:
    workers = [Folder(kv) for _ in range(200)]
    for number, worker in enumerate(workers):
        worker.open()
        worker.put(f"v1/{number}", b"")
    frontend, other = FileDiscovery(kv), FileDiscovery(kv)
    await frontend.start()
    await other.start()
    async with aclosing(frontend.watch("v1/")) as one, aclosing(other.watch("v1/")) as two:
        for changes in (one, two):
            await snapshot(changes)
        for worker in workers[1:]:
            worker.release_lease()  # as the kernel does when a process is killed
        for changes in (one, two):
            async with asyncio.timeout(PATIENCE):
                assert {await anext(changes) for _ in workers[1:]} == {Delete(f"v1/{n}") for n in range(1, 200)}
    assert list(await frontend.get_prefix("")) == ["v1/0"]
    workers[0].close()
    await frontend.close()
    await other.close()


async def test_a_deleted_folder_comes_back_with_its_records_and_nobody_is_told_they_left(kv: Path) -> None:
    worker, frontend = FileDiscovery(kv), FileDiscovery(kv)
    await worker.start()
    await frontend.start()
    await worker.put("v1/worker", b"1")
    async with aclosing(frontend.watch("v1/")) as changes:
        await snapshot(changes)
        os.rename(kv, kv.with_name("gone"))
        shutil.rmtree(kv.with_name("gone"))
        await worker.put("v1/second", b"2")
        assert await changes_until(changes, Put("v1/second", b"2")) == [Put("v1/second", b"2")]
    other = FileDiscovery(kv)
    await other.start()
    async with aclosing(other.watch("v1/worker")) as changes:
        await changes_until(changes, Put("v1/worker", b"1"))
    for discovery in (worker, frontend, other):
        await discovery.close()


@pytest.mark.parametrize("part", ["records", "leases", "tmp", "lock"])
async def test_a_deleted_part_of_the_folder_comes_back(kv: Path, part: str) -> None:
    worker = FileDiscovery(kv)
    await worker.start()
    await worker.put("v1/a", b"1")
    path = kv / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    await worker.put("v1/b", b"2")
    other = FileDiscovery(kv)
    await other.start()
    async with aclosing(other.watch("v1/a")) as a, aclosing(other.watch("v1/b")) as b:
        await changes_until(a, Put("v1/a", b"1"))
        await changes_until(b, Put("v1/b", b"2"))
    await worker.close()
    await other.close()


async def test_leaving_takes_every_file_along(kv: Path) -> None:
    worker = FileDiscovery(kv)
    await worker.start()
    await worker.put("v1/a", b"1")
    assert kv.stat().st_mode & 0o777 == 0o700
    await worker.close()
    assert [os.listdir(kv / part) for part in ("records", "leases", "tmp")] == [[], [], []]


async def test_foreign_files_are_ignored_with_one_warning_each(kv: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = FileDiscovery(kv)
    await worker.start()
    await worker.put("v1/a", b"1")
    records = kv / "records"
    (records / "notes.txt").write_text("hello")
    (records / "empty").touch()
    (records / "folder").mkdir()
    (records / "link").symlink_to("/etc/passwd")
    os.mkfifo(records / "fifo")
    escaping = msgspec.msgpack.encode(Record("v1/b", "../../../../etc/passwd", b""))
    (records / file_name("v1/b")).write_bytes(escaping)
    renamed = msgspec.msgpack.encode(Record("v1/c", "0" * 16, b""))
    (records / "another-name").write_bytes(renamed)
    (kv / "leases" / "not a lease").touch()
    with caplog.at_level(logging.WARNING, "dynamo.runtime.discovery.file"):
        for _ in range(3):
            assert await worker.get_prefix("") == {"v1/a": b"1"}
        async with aclosing(worker.watch("")) as changes:
            await snapshot(changes)
            await worker.put("v1/z", b"1")
            await changes_until(changes, Put("v1/z", b"1"))
    assert len(caplog.records) == 7
    assert all("is not a discovery record" in record.message for record in caplog.records)
    await worker.close()


_LIVE, _DEAD = "f" * 16, "0" * 16


@settings(max_examples=80, deadline=None)
@given(
    st.binary(max_size=200)
    | st.builds(
        lambda key, lease, value: msgspec.msgpack.encode({"key": key, "lease": lease, "value": value}),
        st.sampled_from(["x", "~", "v1/a", 7, None]) | st.text(max_size=8),
        st.sampled_from([_LIVE, _DEAD, "", "..", "0" * 15 + "g", "\x00", None]),
        st.binary(max_size=8) | st.floats(),
    ),
    st.sampled_from(["v1%2Fa", "x", "%", "~"]),
)
def test_no_bytes_in_a_record_or_a_lease_break_a_scan(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    root = tmp_path_factory.mktemp("kv")
    folder = Folder(root)
    folder.lease = _LIVE
    folder.open()
    folder.put("v1/ours", b"1")
    (root / "records" / name).write_bytes(content)
    (root / "leases" / _DEAD).write_bytes(content)
    for _ in range(2):
        assert folder.scan()["v1/ours"] == b"1"
    folder.close()


async def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "kv"):
        with pytest.raises(DiscoveryError, match=r"file.* is not a directory; set DYN_FILE_KV"):
            await FileDiscovery(path).start()


async def test_a_folder_of_another_user_is_refused(kv: Path) -> None:
    if os.geteuid() == 0:
        kv.mkdir(parents=True)
        os.chown(kv, 12345, 12345)
    else:
        kv = Path("/usr")
    with pytest.raises(DiscoveryError, match=rf"{kv}: it belongs to user .* set DYN_FILE_KV"):
        await FileDiscovery(kv).start()


@pytest.mark.parametrize("part", ["", "records"])
async def test_a_folder_that_others_can_write_to_is_refused_with_the_repair(kv: Path, part: str) -> None:
    (kv / part).mkdir(parents=True)
    (kv / part).chmod(0o777)
    with pytest.raises(DiscoveryError, match=f"other users can write to .*chmod -R go-w {kv}"):
        await FileDiscovery(kv).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_record_of_another_user_is_ignored(kv: Path) -> None:
    worker, reader = FileDiscovery(kv), FileDiscovery(kv)
    await worker.start()
    await reader.start()
    await worker.put("v1/a", b"1")
    assert await reader.get_prefix("") == {"v1/a": b"1"}
    os.chown(kv / "records" / file_name("v1/a"), 12345, 12345)
    (kv / "records" / file_name("v1/a")).touch()
    assert await reader.get_prefix("") == {}
    await worker.close()
    await reader.close()


async def test_a_value_no_file_can_hold_is_refused(kv: Path) -> None:
    worker = FileDiscovery(kv)
    await worker.start()
    with pytest.raises(ValueError, match="more than a discovery file can hold"):
        await worker.put("v1/a", bytes(64 * 1024 * 1024))
    await worker.close()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"DYN_FILE_KV": "/a/b", "XDG_RUNTIME_DIR": "/run/user/1"}, "/a/b"),
        ({"DYN_FILE_KV": "~/kv"}, str(Path.home() / "kv")),
        ({"DYN_FILE_KV": "", "XDG_RUNTIME_DIR": "/run/user/1"}, "/run/user/1/dynamo"),
        ({"TMPDIR": "/scratch"}, f"/scratch/dynamo-{os.getuid()}"),
        ({}, f"/tmp/dynamo-{os.getuid()}"),
    ],
)
def test_the_default_folder_is_this_users_own(environ: dict[str, str], folder: str) -> None:
    assert RuntimeConfig.from_env(environ).discovery.file_folder == Path(folder)


@given(st.lists(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1), min_size=2, unique=True))
def test_different_keys_have_different_file_names_that_fit(keys: list[str]) -> None:
    names = {file_name(key * repeat) for key in keys for repeat in (1, 300)}
    assert len(names) == len({key * repeat for key in keys for repeat in (1, 300)})
    assert all(len(name) <= 200 and "/" not in name and not name.startswith(".") for name in names)


def test_a_process_that_can_open_no_file_takes_no_other_for_dead(kv: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker, frontend = Folder(kv), Folder(kv)
    worker.open()
    frontend.open()
    worker.put("v1/worker", b"held")
    with no_more_files():
        with pytest.raises(OSError, match="Too many open files"):
            frontend.scan()
        frontend.sweep()
    assert frontend.scan() == {"v1/worker": b"held"}
    assert worker.in_place()
    assert not caplog.records
    for folder in (worker, frontend):
        folder.close()


@pytest.mark.parametrize("number", range(3))
def test_a_record_whose_reading_fails_halfway_is_read_later(
    kv: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, frontend = Folder(kv), Folder(kv)
    worker.open()
    frontend.open()
    worker.put("v1/worker", b"held")
    opened, real = 0, os.open

    def one_fails(*args: Any, **named: Any) -> int:
        nonlocal opened
        opened += 1
        if opened == number + 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", one_fails)
        with suppress(OSError):
            assert frontend.scan() == {"v1/worker": b"held"}
    assert frontend.scan() == {"v1/worker": b"held"}
    for folder in (worker, frontend):
        folder.close()


async def test_watchers_keep_what_they_know_while_no_file_can_be_opened(
    kv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker, frontend = FileDiscovery(kv), FileDiscovery(kv)
    await worker.start()
    await frontend.start()
    await worker.put("v1/worker", b"held")
    async with aclosing(frontend.watch("v1/")) as changes:
        assert await snapshot(changes) == [Put("v1/worker", b"held")]
        with no_more_files():
            await until(lambda: "Too many open files" in caplog.text)
            with pytest.raises(DiscoveryError, match="cannot read the discovery records"):
                await frontend.get_prefix("v1/")
        await worker.put("v1/other", b"new")
        assert await changes_until(changes, Put("v1/other", b"new")) == [Put("v1/other", b"new")]
    for discovery in (worker, frontend):
        await discovery.close()


def test_a_full_disk_leaves_no_unfinished_record(kv: Path) -> None:
    worker = Folder(kv)
    worker.open()
    with full_disk(), pytest.raises(DiscoveryError, match="File too large"):
        worker.put("v1/worker", b"held")
    assert os.listdir(kv / "tmp") == []
    worker.put("v1/worker", b"held")
    assert worker.scan() == {"v1/worker": b"held"}
    worker.close()
