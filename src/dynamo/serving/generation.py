"""One client request at the workers: per choice, a delivery and the stages through which its stream passes."""

from __future__ import annotations

from functools import partial

from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.postprocess import Postprocess
from dynamo.pipeline.preprocess import Prepared
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.router.decision import Decision
from dynamo.router.delivery import Delivery
from dynamo.router.placement import pinned_instance
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink
from dynamo.serving.models import ServedModel
from dynamo.serving.observer import RequestObserver


class Generation:
    """All streams that one request has at workers. `close` ends them in any state."""

    def __init__(self, model: ServedModel, context: Context, observer: RequestObserver | None = None) -> None:
        self._model = model
        self._context = context
        self._observer = observer
        if observer:
            observer.served_by(model.name)
        self._group = object()
        """Identifies to the router the deliveries that are choices of one request."""
        self._running: list[tuple[Context, Delivery]] = []

    @property
    def decisions(self) -> list[Decision]:
        """The routing decision of each choice."""
        placements = [delivery.placement for _, delivery in self._running]
        return [placement.decision for placement in placements if placement and placement.decision]

    @property
    def first_output_time(self) -> float | None:
        """When any worker first produced output, on the clock of `time.time`."""
        times = [delivery.history.first_output_time for _, delivery in self._running]
        return min((at for at in times if at), default=None)

    async def add(
        self,
        prepared: Prepared,
        choice: ChoiceSink,
        chat: ChatRequest | None = None,
        tool_finish_reason: str = "tool_calls",
        token_ids: list[int] | None = None,
    ) -> None:
        """Send the request of one choice; its text goes to `choice`, parsed as the `chat` request asks.

        The ids of its tokens are appended to `token_ids`.
        """
        preprocessor = self._model.preprocessor
        assert preprocessor
        context = self._next_context()
        sink = Postprocess(
            prepared.request,
            preprocessor.decoder(prepared),
            choice,
            parser=preprocessor.parser(chat, prepared.prompt) if chat else None,
            one_call=bool(chat and chat.parallel_tool_calls is False),
            tool_finish_reason=tool_finish_reason,
            stop_worker=context.stop_generating,
            token_ids=token_ids,
        )
        choice.begin(sink.usage)
        await self._deliver(prepared.request, context, sink, len(prepared.request.token_ids))

    async def relay(self, request: object, sink: Sink) -> None:
        """Send a request to a worker that takes text and tokenizes it itself."""
        await self._deliver(request, self._next_context(), sink)

    async def _deliver(self, request: object, context: Context, sink: Sink, prompt_tokens: int = 0) -> None:
        router = self._model.router
        if self._observer:
            sink = self._observer.metered(sink, prompt_tokens)
        delivery = Delivery(
            partial(router.place, group=self._group),
            router.instances,
            request,
            context,
            sink,
            pinned=pinned_instance(request),
            limit=self._model.card.migration_limit,
        )
        self._running.append((context, delivery))
        if self._observer:
            self._observer.delivering(delivery)
        await delivery.start()

    def _next_context(self) -> Context:
        """Each choice can be stopped alone; the first one carries the request's own id."""
        if not self._running:
            return self._context
        return self._context.detached(f"{self._context.id()}-{len(self._running)}")

    async def close(self) -> None:
        # Emptied: the deliveries lead back to this object, and only the garbage collector frees a cycle.
        running, self._running = self._running, []
        for context, delivery in running:
            context.kill()
            await delivery.close()
