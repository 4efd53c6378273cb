"""Kept records: both kinds of store behave alike."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.protocols.errors import CannotStore, StartError
from dynamo.serving.store import Limits, Records
from dynamo.serving.store.records import MemoryRecords, OwnedRecords
from dynamo.serving.store.sqlite import SqliteRecords
from support.limits import full_disk

LIMITS = {"small": Limits(3, 100)}

WRITER = """
import asyncio, sys
from pathlib import Path
from dynamo.serving.store import Limits
from dynamo.serving.store.sqlite import SqliteRecords

async def main():
    records = SqliteRecords(Path(sys.argv[1]), {"small": Limits(3, 100)})
    for number in range(100):
        await records.update("counter", "c", lambda body: b"%d" % (int(body) + 1))
        await records.put("small", f"{sys.argv[2]}{number}", b"x")
    await records.close()

asyncio.run(main())
"""


@pytest.fixture(params=["memory", "sqlite"])
async def records(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Records]:
    opened: Records = (
        MemoryRecords(LIMITS) if request.param == "memory" else SqliteRecords(tmp_path / "state.sqlite", LIMITS)
    )
    yield opened
    await opened.close()


async def test_a_record_is_put_replaced_updated_and_deleted(records: Records) -> None:
    assert await records.get("k", "a") is None
    assert await records.update("k", "a", lambda body: body) is None
    await records.put("k", "b", b"2")
    await records.put("k", "a", b"0")
    await records.put("k", "a", b"1")
    await records.put("other", "a", b"3")
    assert await records.get("k", "a") == b"1"
    assert await records.all("k") == [b"1", b"2"]
    assert await records.update("k", "a", lambda body: body + b"!") == b"1!"
    assert await records.delete("k", "a")
    assert not await records.delete("k", "a")
    assert await records.get("other", "a") == b"3"


async def test_the_oldest_go_when_there_are_too_many(records: Records) -> None:
    for id in "abc":
        await records.put("small", id, id.encode())
    await records.update("small", "a", lambda body: body)
    await records.put("small", "d", b"d")
    assert await records.all("small") == [b"a", b"c", b"d"]


async def test_the_oldest_go_when_they_are_too_large(records: Records) -> None:
    await records.put("small", "a", bytes(60))
    await records.put("small", "b", bytes(60))
    assert await records.get("small", "a") is None
    assert await records.get("small", "b") == bytes(60)
    await records.put("small", "c", bytes(101))
    assert await records.all("small") == []
    await records.put("small", "d", bytes(40))
    assert await records.all("small") == [bytes(40)]


async def test_an_owner_displaces_none_of_another_beyond_its_own_share(records: Records) -> None:
    mine, others = OwnedRecords(records, "mine"), OwnedRecords(records, "other")
    await mine.put("small", "kept", bytes(30))
    for number in range(10):
        await others.put("small", str(number), bytes([number]))
    assert await mine.get("small", "kept") == bytes(30)
    assert await others.all("small") == [b"\x08", b"\x09"]
    await others.put("small", "large", bytes(90))
    assert await others.all("small") == []
    assert await mine.get("small", "kept") == bytes(30)


async def test_a_new_owner_gets_room_from_the_one_that_has_most(records: Records) -> None:
    first, second = OwnedRecords(records, "first"), OwnedRecords(records, "second")
    for number in range(3):
        await first.put("small", str(number), b"1")
    await second.put("small", "a", b"2")
    assert await first.all("small") == [b"1", b"1"]
    assert await second.all("small") == [b"2"]


async def test_a_file_of_a_server_without_shares_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    records = SqliteRecords(path, {})
    for id in ("first/a", "first/b", "first/c", "second/a"):
        await records.put("small", id, id.encode())
    await records.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            "DROP TABLE shares; DROP INDEX records_by_owner; DROP TRIGGER share_added; DROP TRIGGER share_removed"
        )
    records = SqliteRecords(path, LIMITS)
    await records.put("small", "second/b", b"new")
    assert await records.all("small") == [b"first/b", b"first/c", b"new"]
    await records.close()


async def test_a_failed_update_changes_nothing(records: Records) -> None:
    def fail(body: bytes) -> bytes:
        raise ValueError("no")

    await records.put("k", "a", b"1")
    with pytest.raises(ValueError, match="no"):
        await records.update("k", "a", fail)
    assert await records.get("k", "a") == b"1"
    await records.put("k", "b", b"2")
    assert await records.all("k") == [b"1", b"2"]


async def test_several_processes_write_one_file_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    first = SqliteRecords(path, {})
    await first.put("counter", "c", b"0")
    writers = [await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(path), name) for name in "ab"]
    assert [await writer.wait() for writer in writers] == [0, 0]
    assert await first.get("counter", "c") == b"200"
    assert len(await first.all("small")) == 3
    await first.close()


async def test_records_of_a_file_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    first = SqliteRecords(path, LIMITS)
    await first.put("k", "a", b"1")
    await first.close()
    second = SqliteRecords(path, LIMITS)
    assert await second.get("k", "a") == b"1"
    assert path.stat().st_mode & 0o777 == 0o600
    await second.close()


async def test_a_file_that_is_no_database_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_text("something else, long enough to be no database" * 50)
    with pytest.raises(StartError, match=r"state\.sqlite.*--state-dir"):
        SqliteRecords(path, LIMITS)


@pytest.mark.parametrize(("version", "age"), [(1, "an earlier"), (1000, "a later")])
async def test_a_file_of_another_version_is_refused_and_left_alone(tmp_path: Path, version: int, age: str) -> None:
    path = tmp_path / "state.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StartError, match=rf"{age} version of this server wrote it.*move it away.*--state-dir"):
        SqliteRecords(path, LIMITS)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)


async def test_a_full_disk_loses_the_record_and_nothing_else(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "state.sqlite", {})
    await records.put("a", "1", b"before")
    with full_disk():
        for _ in range(2):
            with pytest.raises(CannotStore, match="cannot write to its disk"):
                await records.put("a", "2", b"x" * 10_000)
        with pytest.raises(CannotStore):
            await records.update("a", "1", lambda body: b"changed")
        assert await records.all("a") == [b"before"]
    await records.put("a", "2", b"after")
    assert await records.all("a") == [b"before", b"after"]
    await records.close()


async def test_the_oldest_go_also_when_the_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = SqliteRecords(tmp_path / "state.sqlite", LIMITS)
    for number, seconds in enumerate((5000, 4000, 3000, 2000, 1000)):
        monkeypatch.setattr(time, "time_ns", lambda now=seconds: now * 10**9)
        await records.put("small", str(number), b"%d" % number)
    assert await records.all("small") == [b"2", b"3", b"4"]
    await records.close()
