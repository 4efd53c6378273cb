"""Cancellation between a client and a handler: who ended the request decides what the client sees."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm.exceptions import Cancelled, Disconnected, DynamoException
from dynamo.runtime import Client, Context, DistributedRuntime, RuntimeConfig
from support.services import Nats
from support.waiting import until

PLANES = ["memory", "tcp", "nats"]


class Handler:
    """Does what the request asks for, and remembers the contexts it was given."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self.ended: list[str] = []

    async def generate(self, request: str, context: Context) -> AsyncIterator[Any]:
        self.contexts.append(context)
        if request == "count":
            while not context.is_stopped():
                yield 0
                await asyncio.sleep(0.01)
        if request == "ignore":
            yield "unwanted"
            return
        if request != "wait":
            yield 0
            yield 1
        match request:
            case "stop":
                context.stop_generating()
            case "kill":
                context.kill()
            case "cancel":
                raise asyncio.CancelledError
            case "wait":
                await context.async_killed_or_stopped()
                self.ended.append("raised")
                raise asyncio.CancelledError


@asynccontextmanager
async def served(plane: str, handler: Handler, tmp_path: Path, nats: Nats) -> AsyncIterator[Client]:
    if plane == "memory":
        config = RuntimeConfig.in_process({})
    else:
        environ = {"DYN_FILE_KV": str(tmp_path / "kv"), "NATS_SERVER": nats.url}
        config = RuntimeConfig.from_env(environ, discovery_backend="file", request_plane=plane)
    async with DistributedRuntime(config=config) as runtime:
        endpoint = runtime.endpoint("a.b.c")
        serving = asyncio.create_task(endpoint.serve_endpoint(handler.generate))
        client = await endpoint.client()
        await client.wait_for_instances()
        yield client
        runtime.shutdown()
        await serving


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize(
    ("way", "error", "words"),
    [
        ("stop", Disconnected, "Disconnected: "),
        ("kill", Disconnected, "Disconnected: "),
        ("cancel", Cancelled, "BackendCancelled: CancelledError"),
    ],
)
async def test_a_handler_that_gives_its_request_up_ends_the_stream_with_an_error(
    plane: str, way: str, error: type[DynamoException], words: str, tmp_path: Path, nats: Nats
) -> None:
    async with served(plane, Handler(), tmp_path, nats) as client:
        stream = await client.generate(way)
        assert [(await anext(stream)).data(), (await anext(stream)).data()] == [0, 1]
        with pytest.raises(ValueError, match=words) as caught:
            await anext(stream)
        assert isinstance(caught.value, error)


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("moment", ["before the call", "before it is awaited"])
@pytest.mark.parametrize("request_value", ["wait", "ignore"])
async def test_a_context_stopped_before_it_is_sent_yields_nothing(
    plane: str, moment: str, request_value: str, tmp_path: Path, nats: Nats
) -> None:
    handler = Handler()
    async with served(plane, handler, tmp_path, nats) as client:
        context = Context()
        if moment == "before the call":
            context.stop_generating()
        call = client.generate(request_value, context=context)
        context.stop_generating()
        assert [item async for item in await call] == []
        assert handler.contexts[0].is_stopped()
        assert not handler.contexts[0].is_killed()


@pytest.mark.parametrize("plane", PLANES)
async def test_a_stream_its_caller_stopped_just_ends(plane: str, tmp_path: Path, nats: Nats) -> None:
    handler = Handler()
    async with served(plane, handler, tmp_path, nats) as client:
        context = Context()
        stream = await client.generate("wait", context=context)
        await until(lambda: handler.contexts)
        context.stop_generating()
        assert [item async for item in stream] == []
        assert handler.ended == ["raised"]


LEAVING_CLIENT = """
import asyncio
from dynamo._core import Context, DistributedRuntime

async def main():
    global stream  # dropped, it would kill the request
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", PLANE)
    client = await runtime.endpoint("a.b.c").client()
    await client.wait_for_instances()
    context = Context()
    stream = await client.generate("count", context=context)
    await anext(stream)
    context.stop_generating()
    runtime.shutdown()

asyncio.run(main())
"""


@pytest.mark.parametrize("plane", ["tcp", "nats"])
async def test_a_cancellation_is_sent_even_by_a_program_that_ends_right_after_it(
    plane: str, tmp_path: Path, nats: Nats
) -> None:
    handler = Handler()
    async with served(plane, handler, tmp_path, nats):
        environ = {**os.environ, "DYN_FILE_KV": str(tmp_path / "kv"), "NATS_SERVER": nats.url}
        code = LEAVING_CLIENT.replace("PLANE", repr(plane))
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environ)
        assert await process.wait() == 0
        await until(lambda: handler.contexts[0].is_stopped())
        assert handler.contexts[0].stopped_by_caller
        # A worker sees at once that a TCP connection was closed; over NATS it would take a missed heartbeat.
        assert plane == "tcp" or not handler.contexts[0].is_killed()


async def test_a_listener_of_a_stopped_context_is_called_at_once_and_again_when_it_is_killed() -> None:
    context = Context()
    context.stop_generating()
    heard: list[bool] = []
    forget = context.on_stop(heard.append)
    context.kill()
    forget()
    assert heard == [False, True]
