"""Attach an engine to an endpoint."""

from __future__ import annotations

from typing import Any

from dynamo.engines.base import Engine
from dynamo.protocols.card import ModelInput
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.runtime import Context, Endpoint
from dynamo.runtime.stream import Handler, Outlet


def engine_handler(engine: Engine) -> Handler:
    """Requests go to the engine, its steps straight to the outlet, a caller's leaving back to the engine."""

    def handle(request: Any, context: Context, outlet: Outlet) -> None:
        running = engine.submit(request, outlet)
        context.on_stop(lambda _: running.cancel())
        if context.is_stopped():
            running.cancel()

    return handle


async def serve_engine(endpoint: Endpoint, engine: Engine) -> None:
    """Serve until the runtime shuts down. The engine must have started; its owner stops it afterwards."""
    request_type = PreprocessedRequest if engine.model_input is ModelInput.Tokens else Any
    await endpoint.serve(engine_handler(engine), request_type)
