"""What an administrator may do with a worker: take it out of rotation, take it back, end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from dynamo.kv.publish.feed import component_of
from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime import Endpoint
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.names import CONTROL_ENDPOINT


async def offer_control(endpoint: Endpoint) -> None:
    """Serve an endpoint beside the engine's that takes `{"action": "drain" | "resume" | "remove"}`."""
    runtime = endpoint.runtime

    async def control(request: Any) -> AsyncIterator[Any]:
        match request.get("action") if isinstance(request, dict) else None:
            case "drain":
                await runtime.set_draining(True)
            case "resume":
                await runtime.set_draining(False)
            case "remove" if runtime.plane.transport == "memory":
                raise InvalidArgument("this worker is part of the server's own process: end the server instead")
            case "remove":
                # After the answer: this endpoint ends with the others.
                asyncio.get_running_loop().call_soon(runtime.shutdown)
            case _:
                raise InvalidArgument("a worker can be told to drain, resume or remove")
        yield {"status": "success"}

    await serve_beside(endpoint, CONTROL_ENDPOINT, control)


async def serve_beside(endpoint: Endpoint, name: str, answer: Callable[[Any], AsyncIterator[Any]]) -> None:
    """Serve `answer` at an endpoint of this name beside `endpoint`; return once others can find it."""
    settled = asyncio.Event()

    async def serve() -> None:
        beside = component_of(endpoint).endpoint(name)
        try:
            await beside.serve(GeneratorHandler(answer), graceful_shutdown=False, auxiliary=True, on_found=settled.set)
        finally:
            settled.set()

    await endpoint.runtime.start()
    endpoint.runtime.own(serve(), f"the endpoint {name}")
    await settled.wait()
