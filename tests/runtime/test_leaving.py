"""An endpoint that leaves the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.runtime.discovery import DiscoveryError
from support.waiting import PATIENCE


async def test_requests_finish_although_discovery_cannot_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    config, local, go_on = RuntimeConfig.in_process({}), Local(), asyncio.Event()

    async def generate(request: Any) -> AsyncIterator[int]:
        yield 1
        await go_on.wait()
        yield 2

    async def refuse(key: str) -> None:
        go_on.set()
        raise DiscoveryError("the store is read-only")

    async with (
        DistributedRuntime(config=config, local=local) as caller,
        DistributedRuntime(config=config, local=local) as worker,
    ):
        serving = asyncio.create_task(worker.endpoint("a.b.c").serve_endpoint(generate))
        client = await caller.endpoint("a.b.c").client()
        await client.wait_for_instances()
        stream = await client.generate({}, annotated=False)
        assert await anext(stream) == 1
        monkeypatch.setattr(worker.discovery, "delete", refuse)
        worker.shutdown()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(DiscoveryError, match="read-only"):
                await serving
            assert [item async for item in stream] == [2]
        monkeypatch.undo()
