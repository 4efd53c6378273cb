"""What is left of stored state when the machine loses power: what was not yet on the disk is gone, and nothing else."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from dynamo.serving.store.files import Files
from dynamo.serving.store.records import MemoryRecords
from dynamo.serving.store.sqlite import SqliteRecords


async def test_a_log_that_ends_anywhere_gives_the_first_records_whole_and_none_in_part(tmp_path: Path) -> None:
    """A power loss cuts the end off the write-ahead log; the file of the database is as old as its last checkpoint."""
    live = tmp_path / "live"
    live.mkdir()
    records = SqliteRecords(live / "state.sqlite", {})
    for number in range(20):
        await records.put("kind", f"owner/{number:02}", b"%d" % number * 500)
    log = (live / "state.sqlite-wal").read_bytes()
    database = (live / "state.sqlite").read_bytes()
    await records.close()
    found = []
    for cut in (*range(0, len(log), 7777), len(log)):
        folder = tmp_path / "after"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "state.sqlite").write_bytes(database)
        (folder / "state.sqlite-wal").write_bytes(log[:cut])
        with closing(sqlite3.connect(folder / "state.sqlite")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        after = SqliteRecords(folder / "state.sqlite", {})
        bodies = await after.all("kind")
        await after.put("kind", "owner/next", b"next")
        await after.close()
        assert bodies == [b"%d" % number * 500 for number in range(len(bodies))]
        found.append(len(bodies))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 20)


async def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without its file would be a promise that the server cannot keep."""
    steps: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append("folder" if path.is_dir() else path.suffix)
        assert path.is_dir() or path.read_bytes() == b"onetwo"
        fsync(descriptor)

    class Noted(MemoryRecords):
        async def put(self, kind: str, id: str, body: bytes) -> None:
            steps.append("record")
            await super().put(kind, id, body)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    monkeypatch.setattr(os, "fsync", noted)
    files = Files(Noted({}), tmp_path, 1000)
    id = await files.write(chunks())
    await files.register(id, "name", "batch")
    assert steps == [".part", "folder", "record"]
