"""Requests that outlast the drain are ended with an error that the client can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.serving import Holding, serving
from support.waiting import PATIENCE


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_outlasts_the_drain_gets_an_error(tmp_path: Path, stream: bool) -> None:
    engine = Holding()
    async with (
        asyncio.timeout(PATIENCE),
        serving(tmp_path, engine, graceful_shutdown_timeout=0.05) as stack,
    ):
        asking = asyncio.create_task(stack.chat(stream=stream))
        held = await engine.requests.get()
        held.sink.tokens([65])
        answer = await asking if stream else None
        stack.runtime.shutdown()
        await stack.server.serve()
        answer = answer or await asking
        text = await answer.text()
        assert answer.status == (200 if stream else 503)
        assert "The service shut down before the answer was complete." in text
        await held.cancelled.wait()
