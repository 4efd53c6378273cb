"""Responses in progress whose server was killed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from dynamo.api.responses.answers import ResponseObject
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.stored_conversations import Conversations
from dynamo.api.responses.stored_responses import ResponseStore, Turn
from dynamo.protocols.errors import InvalidRequest
from dynamo.serving.store.processes import FOLDER, LiveProcesses
from dynamo.serving.store.sqlite import SqliteRecords

ID = "resp_1"


@asynccontextmanager
async def stored_in(folder: Path) -> AsyncIterator[ResponseStore]:
    records, processes = SqliteRecords(folder / "state.sqlite", {}), LiveProcesses(folder)
    try:
        yield ResponseStore(records, Conversations(records, enabled=True), processes, enabled=True)
    finally:
        processes.close()
        await records.close()


async def begin_and_wait(folder: Path) -> None:
    """What the other process does: store a response that is not complete, say so, and go on for ever."""
    request = ResponsesRequest(model="m", input="hi", background=True, store=True)
    async with stored_in(folder) as store:
        await store.save(request, Turn([], "hi"), ResponseObject.in_progress(request, ID, "m", 0))
        print("stored", flush=True)
        await asyncio.Event().wait()


def shown(response: msgspec.Raw) -> tuple[str, str | None]:
    value = msgspec.json.decode(response)
    return value["status"], value["error"] and value["error"]["message"]


async def test_a_response_fails_when_the_process_that_produces_it_is_killed(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(tmp_path), stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert other.stdout
    async with stored_in(tmp_path) as store:
        try:
            assert await other.stdout.readline() == b"stored\n"
            assert shown((await store.get(ID)).response) == ("in_progress", None)
            with pytest.raises(InvalidRequest, match="still in progress"):
                await store.turn(ResponsesRequest(model="m", input="more", previous_response_id=ID))
        finally:
            other.kill()
            await other.wait()
        failed = ("failed", "The server ended before the response was complete.")
        assert shown((await store.get(ID)).response) == failed
        assert shown((await store.cancel(ID)).response) == failed
        assert len((await store.turn(ResponsesRequest(model="m", input="more", previous_response_id=ID))).history) == 1
        assert len(list((tmp_path / FOLDER).iterdir())) == 2
    async with stored_in(tmp_path):
        assert len(list((tmp_path / FOLDER).iterdir())) == 1, "what a killed process left is removed at the next start"


async def test_a_response_that_a_client_cancelled_stays_cancelled(tmp_path: Path) -> None:
    request = ResponsesRequest(model="m", input="hi", background=True, store=True)
    async with stored_in(tmp_path) as store:
        await store.save(request, Turn([], "hi"), ResponseObject.in_progress(request, ID, "m", 0))
        assert shown((await store.cancel(ID)).response) == ("cancelled", None)
    async with stored_in(tmp_path) as store:
        assert shown((await store.get(ID)).response) == ("cancelled", None)


if __name__ == "__main__":
    asyncio.run(begin_and_wait(Path(sys.argv[1])))
