"""A decode worker: fetches what a prefill worker computed and goes on; if it cannot, it computes the prompt itself."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import xxhash
from msgspec import structs

from dynamo.engines.base import Engine, WorkerHandoff
from dynamo.handoff.messages import CHUNK_BYTES, MAX_STATE_BYTES, HandoffOffer, StateChunk, TakeRequest, read_offer
from dynamo.handoff.worker.bootstrap import meet
from dynamo.handoff.worker.metrics import TakeMetrics
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing
from dynamo.protocols.errors import DynamoException, EngineShutdown, ProtocolError
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context, DistributedRuntime
from dynamo.runtime.plane.base import Channel
from dynamo.runtime.stream import Outlet
from dynamo.runtime.tracing.endpoint_spans import SpannedOutlet

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0
"""A prefill worker that sends no chunk for this long is given up."""
MEETING_SECONDS = 60.0
"""With bootstrap: how long a decode worker waits for the prompt to be computed."""


class DecodeWorker:
    """The handler of `generate`. A request without a hand-off goes to the engine at once."""

    def __init__(self, engine: Engine, receiver: WorkerHandoff, runtime: DistributedRuntime) -> None:
        self.metrics = TakeMetrics()
        self._engine = engine
        self._receiver = receiver
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        if request.prefill_result is None and request.bootstrap_info is None:
            running = self._engine.generate(request, outlet)
            context.on_stop(lambda _: running.abort())
            return
        taking = asyncio.create_task(self._take(request))
        self._tasks.add(taking)
        taking.add_done_callback(partial(self._continue, request, context, outlet))
        context.on_stop(lambda _: taking.cancel())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _continue(
        self, request: PreprocessedRequest, context: Context, outlet: Outlet, taking: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(taking)
        if isinstance(outlet, SpannedOutlet):
            outlet.next_stage("hand-off")
        if context.is_stopped():
            outlet.item(EngineOutput(finish_reason="cancelled"))
            outlet.end()
            return
        if taking.cancelled():
            outlet.fail(EngineShutdown("this worker left before the answer was complete"))
            return
        if error := taking.exception():
            self.metrics.failed += 1
            why = error.message if isinstance(error, DynamoException) else f"{type(error).__name__}: {error}"
            log.warning("request %s: computing the prompt here, as it could not be fetched: %s", context.id(), why)
        else:
            self.metrics.taken += 1
        self(structs.replace(request, prefill_result=None, bootstrap_info=None), context, outlet)

    async def _take(self, request: PreprocessedRequest) -> None:
        offer = await self._offer(request)
        began = asyncio.get_running_loop().time()
        state = await fetch_state(self._runtime, offer)
        routing = request.routing or Routing()
        await self._receiver.import_prefix(request.token_ids, state, routing.cache_salt, routing.dp_rank)
        self.metrics.bytes += len(state)
        self.metrics.seconds += asyncio.get_running_loop().time() - began

    async def _offer(self, request: PreprocessedRequest) -> HandoffOffer:
        if request.bootstrap_info is not None:
            return await meet(request.bootstrap_info, MEETING_SECONDS)
        assert request.prefill_result
        offer = read_offer(request.prefill_result.disaggregated_params)
        if offer is None:
            raise ProtocolError("the prefill worker's answer holds no offer that this engine can take")
        return offer


async def fetch_state(runtime: DistributedRuntime, offer: HandoffOffer) -> bytes:
    """The whole state, checked. Raises DynamoException or TimeoutError."""
    context = Context()
    sink = StateSink()
    try:
        channel = await _connect(runtime, offer.sender)
        channel.send(TakeRequest(id=offer.id), context, sink, item_type=StateChunk)
        while not sink.whole.done():
            received = len(sink.data)
            await asyncio.wait({sink.whole}, timeout=SILENT_SECONDS)
            if not sink.whole.done() and len(sink.data) == received:
                raise TimeoutError(f"nothing more came for {SILENT_SECONDS:g} s after {received} bytes")
        sink.whole.result()
    except BaseException:
        context.kill()
        raise
    return bytes(sink.data)


async def _connect(runtime: DistributedRuntime, sender: Instance) -> Channel:
    async with asyncio.timeout(SILENT_SECONDS):
        channel = runtime.plane.channel(sender)
        if not channel.ready:
            await channel.open()
        return channel


class StateSink:
    """Collects the chunks of a state; `whole` is done when all have come, or when one is wrong."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._size: int | None = None

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("the prefill worker answered with token ids"))

    def item(self, value: Any) -> None:
        if self.whole.done():
            return
        assert isinstance(value, StateChunk)
        size = value.size if self._size is None else self._size
        self._size = size
        left = size - len(self.data)
        if value.size != size or size > MAX_STATE_BYTES or len(value.data) != min(CHUNK_BYTES, left):
            self.fail(ProtocolError(f"the chunk at byte {len(self.data)} of {size} does not fit"))
        elif xxhash.xxh3_64_hexdigest(value.data) != value.checksum:
            self.fail(ProtocolError(f"the chunk at byte {len(self.data)} of {size} is damaged"))
        else:
            self.data += value.data

    def end(self) -> None:
        if self._size is None or len(self.data) != self._size:
            self.fail(ProtocolError(f"the state ended after {len(self.data)} of {self._size} bytes"))
        elif not self.whole.done():
            self.whole.set_result(None)

    def fail(self, error: DynamoException) -> None:
        if not self.whole.done():
            self.whole.set_exception(error)
            self.whole.exception()  # marks it as retrieved: the request may have been given up
