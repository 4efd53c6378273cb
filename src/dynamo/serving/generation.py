"""The chain of one request: for each choice a way to a worker and the stages its stream passes."""

from __future__ import annotations

from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.postprocess import Postprocess
from dynamo.pipeline.preprocess import Prepared
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.router.decision import Decision
from dynamo.router.migration import Migration
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink
from dynamo.serving.models import ServedModel
from dynamo.serving.observer import RequestObserver


class Generation:
    """Everything a request has running at workers. `close` ends it, whatever state it is in."""

    def __init__(self, model: ServedModel, context: Context, exchange: RequestObserver | None = None) -> None:
        """Without an exchange nothing is measured."""
        self._model = model
        self._context = context
        self._exchange = exchange
        if exchange:
            exchange.served_by(model.name)
        self._running: list[tuple[Context, Migration]] = []

    @property
    def decisions(self) -> list[Decision]:
        """Where each choice is, and why."""
        return [migration.placement.decision for _, migration in self._running if migration.placement]

    @property
    def first_output_time(self) -> float | None:
        """When the first worker said something, on the clock of `time.time`."""
        return min((at for _, migration in self._running if (at := migration.first_output_time)), default=None)

    async def add(
        self,
        prepared: Prepared,
        choice: ChoiceSink,
        asked: ChatRequest | None = None,
        reason_of_calls: str = "tool_calls",
    ) -> None:
        """Send one choice's request; its text is told to `choice`, parsed as the chat request asks for."""
        preprocessor = self._model.preprocessor
        assert preprocessor
        context = self._next_context()
        sink = Postprocess(
            prepared.request,
            preprocessor.decoder(prepared),
            choice,
            parser=preprocessor.parser(asked, prepared.prompt) if asked else None,
            one_call=bool(asked and asked.parallel_tool_calls is False),
            tool_finish_reason=reason_of_calls,
            stop_worker=context.stop_generating,
        )
        choice.begin(sink.usage)
        metered = self._exchange.metered(sink, len(prepared.request.token_ids)) if self._exchange else sink
        await self._start(prepared.request, context, metered)

    async def relay(self, request: object, sink: Sink) -> None:
        """Send a request as the client wrote it, to a worker that takes text."""
        context = self._next_context()
        metered = self._exchange.metered(sink) if self._exchange else sink
        await self._start(request, context, metered)

    async def _start(self, request: object, context: Context, sink: Sink) -> None:
        model = self._model
        migration = Migration(model.router, request, context, sink, limit=model.card.migration_limit)
        self._running.append((context, migration))
        if self._exchange:
            self._exchange.routing(migration)
        await migration.start()

    def _next_context(self) -> Context:
        """Each choice can be stopped alone; the first one carries the request's own id."""
        if not self._running:
            return self._context
        return self._context.detached(f"{self._context.id()}-{len(self._running)}")

    async def close(self) -> None:
        # Nothing of it is kept: its stages know this object, and what holds itself is freed by the collector alone.
        running, self._running = self._running, []
        for context, migration in running:
            context.kill()
            await migration.close()
