"""A request to a model: what chats, completions and embeddings have in common, whichever API they come from.

Each choice has a delivery to a worker and stages through which its stream passes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import structs

from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.parse import new_call_id
from dynamo.pipeline.postprocess import Postprocess
from dynamo.pipeline.preprocess import Prepared
from dynamo.protocols.card import ModelType
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.engine import PreprocessedRequest, Routing, Tenant, Usage
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.tensors import TensorRequest
from dynamo.protocols.worker_name import worker_name
from dynamo.router.decision import Decision
from dynamo.router.delivery.continuation import repeatable
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions, alone
from dynamo.router.placement import END_TURN
from dynamo.runtime import Context
from dynamo.runtime.logging import TRACE
from dynamo.runtime.stream import Sink
from dynamo.serving import stream_trace
from dynamo.serving.collect import Listener
from dynamo.serving.extra_fields import extra_fields
from dynamo.serving.observer import RequestObserver
from dynamo.serving.relay import RelayedResponse
from dynamo.serving.resumable import ResumableStream
from dynamo.serving.served_model import ServedModel

RequestT = TypeVar("RequestT", bound=ChatRequest | CompletionRequest | EmbeddingRequest | TensorRequest)


class ModelRequest(Generic[RequestT]):
    """Must be closed, whatever its state: that ends the streams it still has at workers."""

    model_type: ClassVar[ModelType]
    id_prefix: ClassVar[str] = ""
    chunk_object: ClassVar[str] = ""
    """The `object` of the answer's chunks."""
    prepared: Prepared | None = None
    """The prompt, the first if there are several; None for a worker that takes text."""

    def __init__(
        self,
        model: ServedModel,
        request: RequestT,
        context: Context,
        observer: RequestObserver | None = None,
        body: bytes | bytearray | None = None,
        stream: ResumableStream | None = None,
    ) -> None:
        """`request` must have been validated. `body` is the client's own JSON: a worker that takes text gets it instead
        of `request`. With `stream`, another frontend can continue it.

        Raises InvalidRequest if the model does not serve such requests.
        """
        if stream and (found := stream.found.get(0)):
            model = model.holder(found.instance_id)
        require_type(model, self.model_type)
        self.model = model
        self.request = request
        self.context = context
        self.id = f"{self.id_prefix}{context.id()}"
        self._received, self._began = time.time(), time.perf_counter()
        self.stream = stream
        self.created = stream.request.created if stream else int(self._received)
        self._body = body
        self._observer = observer
        if observer:
            observer.served_by(model.name)
        self._group = object()
        """Identifies to the router the deliveries that are choices of one request."""
        self._running: list[tuple[Context, Delivery]] = []
        self._outputs: list[Postprocess] = []

    @property
    def takes_text(self) -> bool:
        """The workers tokenize the text themselves and answer with OpenAI chunks."""
        return self.model.preprocessor is None

    @property
    def head(self) -> dict[str, Any]:
        """The fields beside `choices` that each chunk of the answer has."""
        return {"id": self.id, "object": self.chunk_object, "created": self.created, "model": self.model.name}

    def instance_id(self, choice: int = 0) -> int | None:
        """The worker that answers this choice, or None yet."""
        return self._running[choice][1].instance_id if choice < len(self._running) else None

    def worker_name(self, choice: int = 0) -> str:
        """The worker that answers this choice, for messages."""
        instance_id = self.instance_id(choice)
        return "the worker" if instance_id is None else f"the worker {worker_name(instance_id)}"

    async def prepare(self) -> None:
        """Compute what workers get, again where the last one with this version of the card left meanwhile."""
        await self._prepare()
        while successor := self.model.successor():
            require_type(successor, self.model_type)
            self.model, self.prepared = successor, None
            await self._prepare()

    async def _prepare(self) -> None: ...

    async def relay(self, sink: Sink) -> None:
        """Send the request to a worker that takes text; its own chunks go to `sink`."""
        await self._deliver(self._relayed_body(), self._next_context(), sink)

    async def relayed_answer(self, listener: Listener | None) -> dict[str, Any]:
        """The whole answer of a worker that takes text."""
        answer = RelayedResponse(self.head, self.worker_name, listener)
        await self.relay(answer)
        return await answer.whole()

    def _relayed_body(self) -> dict[str, Any]:
        if self._body is None:
            request: dict[str, Any] = msgspec.to_builtins(self.request)
            return request
        written: dict[str, Any] = msgspec.json.decode(self._body)
        if self.request.nvext is not None:
            written["nvext"] = msgspec.to_builtins(self.request.nvext)
        return written

    @property
    def first_output_time(self) -> float | None:
        """When any worker first produced output, on the clock of `perf_counter`."""
        times = [delivery.history.first_output_time for _, delivery in self._running]
        return min((at for at in times if at), default=None)

    def nvext(self, stop_reason: str | int | None) -> dict[str, Any] | None:
        """What was left out of the request, and the facts that the client named in `nvext.extra_fields`.

        Once the answer is complete; None if there is neither.
        """
        notices = self._observer.notices if self._observer else []
        warnings = {"warnings": notices} if notices else {}
        names = self.request.nvext and self.request.nvext.extra_fields
        if not names:
            return warnings or None
        placements = [delivery.placement for _, delivery in self._running]
        decisions: list[Decision] = [each.decision for each in placements if each and each.decision]
        history = self._running[0][1].history if self._running else None
        return warnings | extra_fields(
            names, decisions, history, self._received, self._began, self.first_output_time, stop_reason
        )

    def usage_of(self, choice: int) -> Usage:
        """Up to now."""
        return self._outputs[choice].usage()

    async def close(self) -> None:
        # Emptied: the deliveries lead back to this object, and only the garbage collector frees a cycle.
        running, self._running = self._running, []
        for context, delivery in running:
            context.kill()
            await delivery.close()
        session = self.context.session
        if running and session and session.named:
            tools = (output.tool for output in self._outputs if output.tool)
            self.model.router.session_paused(session, next(tools, END_TURN))
        self._outputs.clear()

    async def _add_choice(
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
        preprocessor = self.model.preprocessor
        assert preprocessor
        index = len(self._running)
        context = self._next_context()
        sink = preprocessor.postprocess(
            prepared,
            choice,
            chat,
            tool_finish_reason=tool_finish_reason,
            stop_worker=context.stop_generating,
            worker=partial(self.worker_name, index),
            token_ids=token_ids,
            one_by_one=self.stream is not None,
            new_call_id=self.stream.name.call_ids(index) if self.stream else new_call_id,
        )
        self._outputs.append(sink)
        request = _salted(prepared.request, context.tenant)
        if self.stream:
            request = repeatable(request, self.stream.name.seed(index))
        await self._deliver(request, context, sink, len(request.token_ids))

    async def _deliver(self, request: object, context: Context, sink: Sink, prompt_tokens: int = 0) -> None:
        router, stream, index = self.model.router, self.stream, len(self._running)
        kept_at = await stream.kept_at(index, router.instances) if stream else None
        delivery = Delivery(
            partial(self.model.place, group=self._group, tenant=context.tenant, session=context.session),
            router.instances,
            request,
            context,
            sink,
            DeliveryOptions(
                limit=self.model.card.migration_limit,
                max_seq_len=self.model.migration_max_seq_len,
                watch=router.watch,
                backoff=router.backoff,
                resumes_guided=self.model.resumes_guided,
                beside=self.model.handoffs.begin if self.model.handoffs else alone,
                suspects=self.model.suspects,
                tenant=context.tenant,
                claim=stream.claim(index) if stream else None,
                kept_at=kept_at,
            ),
        )
        self._running.append((context, delivery))
        if self._observer:
            self._observer.delivering(delivery, prompt_tokens)
        if stream_trace.log.isEnabledFor(TRACE):
            delivery.sink = stream_trace.TracedSink(delivery.sink, context.id(), request)
        await delivery.start()

    def _next_context(self) -> Context:
        """Each choice can be stopped alone; the first one carries the request's own id."""
        if not self._running:
            return self.context
        return self.context.detached(f"{self.context.id()}-{len(self._running)}")


def _salted(request: PreprocessedRequest, tenant: Tenant | None) -> PreprocessedRequest:
    """Keep the tenant's cached prefixes its own, whatever salt it sends along."""
    if tenant is None or not tenant.cache_salt:
        return request
    routing = request.routing or Routing()
    salt = f"{tenant.cache_salt}/{routing.cache_salt}" if routing.cache_salt else tenant.cache_salt
    return structs.replace(request, routing=structs.replace(routing, cache_salt=salt))


def require_type(model: ServedModel, model_type: ModelType) -> None:
    if not model.card.type & model_type:
        wanted, offered = (", ".join(kind.names()) for kind in (model_type, model.card.type))
        raise InvalidRequest(f"The model '{model.name}' does not serve {wanted}; it serves: {offered}.", "model")
