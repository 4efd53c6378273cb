"""A model at an endpoint, from its registration until its requests are drained."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dynamo.engines.base import Engine
from dynamo.model.registration import put_card, remove_card
from dynamo.protocols.card import ModelCard
from dynamo.runtime import Endpoint
from dynamo.runtime.discovery import Put
from dynamo.runtime.plane.admission import RequestLimit
from dynamo.worker.serve import serve_requests


@asynccontextmanager
async def listed(
    endpoint: Endpoint, engine: Engine, card: ModelCard, limit: RequestLimit | None = None
) -> AsyncIterator[ModelCard]:
    """Register and serve an engine that answers, with its complete card as listed; at the end, leave and drain."""
    runtime = endpoint.runtime
    card = await put_card(endpoint, card)
    serving = asyncio.create_task(serve_requests(endpoint, engine, card.name, card, limit))
    try:
        await _until_listed(endpoint, serving)
        yield card
    finally:
        if not runtime.is_shutting_down:
            serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        if not runtime.is_shutting_down:  # otherwise the runtime takes all its records with it
            await remove_card(endpoint)


async def _until_listed(endpoint: Endpoint, serving: asyncio.Task[None]) -> None:
    """Wait until discovery lists the instance; if serving fails first, raise its error."""

    async def watch() -> None:
        async with contextlib.aclosing(endpoint.runtime.discovery.watch(endpoint.instance_key)) as changes:
            async for change in changes:
                if isinstance(change, Put):
                    return

    seen = asyncio.create_task(watch())
    await asyncio.wait({seen, serving}, return_when=asyncio.FIRST_COMPLETED)
    seen.cancel()
    await asyncio.gather(seen, return_exceptions=True)
    if serving.done():
        await serving
