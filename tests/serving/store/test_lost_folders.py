"""What becomes of stored state when its folder is taken away, and of uploads whose process was killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.protocols.errors import CannotStore
from dynamo.serving.store.files import FOLDER, Files, delete_leftovers
from dynamo.serving.store.records import MemoryRecords
from dynamo.serving.store.sqlite import SqliteRecords


async def test_a_folder_that_was_deleted_is_noticed_by_the_next_write(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    records = SqliteRecords(folder / "state.sqlite", {})
    try:
        await records.put("response", "1", b"before")
        shutil.rmtree(folder)
        with pytest.raises(CannotStore, match="was deleted or replaced"):
            await records.put("response", "2", b"after")
        folder.mkdir()
        other = SqliteRecords(folder / "state.sqlite", {})
        with pytest.raises(CannotStore, match="was deleted or replaced"):
            await records.put("response", "2", b"after")
        await other.close()
        assert await records.get("response", "1") == b"before"
    finally:
        await records.close()


async def endless() -> AsyncIterator[bytes]:
    yield b"x" * 100_000
    print("begun", flush=True)
    await asyncio.Event().wait()


async def upload(folder: Path) -> None:
    await Files(MemoryRecords({}), folder, 1 << 30).write(endless())


async def test_an_upload_is_deleted_once_its_process_was_killed_and_not_before(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(tmp_path), stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert other.stdout
    try:
        assert await other.stdout.readline() == b"begun\n"
        await delete_leftovers(MemoryRecords({}), tmp_path)
        assert len(list((tmp_path / FOLDER).iterdir())) == 1
    finally:
        other.send_signal(signal.SIGKILL)
        await other.wait()
    await delete_leftovers(MemoryRecords({}), tmp_path)
    assert not list((tmp_path / FOLDER).iterdir())


if __name__ == "__main__":
    asyncio.run(upload(Path(sys.argv[1])))
