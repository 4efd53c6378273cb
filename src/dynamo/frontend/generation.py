"""The chain of one request: for each choice a way to a worker and the stages its stream passes."""

from __future__ import annotations

from typing import Any

from dynamo.frontend.models import ServedModel
from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.migration import Migration
from dynamo.pipeline.parse import OutputParser
from dynamo.pipeline.postprocess import Postprocess
from dynamo.pipeline.preprocess import Prepared
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink


class Generation:
    """Everything a request has running at workers. `close` ends it, whatever state it is in."""

    def __init__(self, model: ServedModel, context: Context) -> None:
        self._model = model
        self._context = context
        self._running: list[tuple[Context, Migration]] = []

    @property
    def instance_ids(self) -> list[int]:
        return [migration.instance_id for _, migration in self._running if migration.instance_id is not None]

    @property
    def routing(self) -> list[dict[str, Any]]:
        """Why each choice is where it is."""
        return [migration.placement.decision.reasons() for _, migration in self._running if migration.placement]

    async def add(self, prepared: Prepared, choice: ChoiceSink, parser: OutputParser | None = None) -> None:
        """Send one choice's request; its text is told to `choice`."""
        assert self._model.preprocessor
        context = self._next_context()
        sink = Postprocess(
            prepared.request,
            self._model.preprocessor.decoder(prepared),
            choice,
            parser=parser,
            stop_worker=context.stop_generating,
        )
        await self._start(Migration(
            self._model.router, prepared.request, context, sink, limit=self._model.card.migration_limit
        ), context)  # fmt: skip

    async def relay(self, request: object, sink: Sink) -> None:
        """Send a request as the client wrote it, to a worker that takes text."""
        context = self._next_context()
        await self._start(Migration(self._model.router, request, context, sink), context)

    async def _start(self, migration: Migration, context: Context) -> None:
        self._running.append((context, migration))
        await migration.start()

    def _next_context(self) -> Context:
        """Each choice can be stopped alone; the first one carries the request's own id."""
        if not self._running:
            return self._context
        return self._context.detached(f"{self._context.id()}-{len(self._running)}")

    async def close(self) -> None:
        for context, migration in self._running:
            context.kill()
            await migration.close()
