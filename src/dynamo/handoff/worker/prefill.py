"""A prefill worker: computes prompts and offers them to decode workers.

Each offer has a record with a deadline. The stream of the request stays open as long as its record: its reader gives
the offer back by cancelling, and a worker that leaves waits for its open streams, so for its offers too.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec
import xxhash
from msgspec import structs

from dynamo.engines.base import Engine, HeldPrefix, WorkerHandoff
from dynamo.handoff.messages import CHUNK_BYTES, OFFER, HandoffOffer, StateChunk, TakeRequest
from dynamo.handoff.record import HandoffLedger, HandoffRecord, HandoffState
from dynamo.handoff.worker.bootstrap import MeetingPlace
from dynamo.handoff.worker.metrics import HandoffMetrics
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing
from dynamo.protocols.errors import Cancelled, DynamoException, Unavailable, from_exception
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context, Endpoint
from dynamo.runtime.names import HANDOFF_ENDPOINT, EndpointId
from dynamo.runtime.plane.base import route_path
from dynamo.runtime.plane.route import Route, log_failure
from dynamo.runtime.stream import Outlet
from dynamo.runtime.tracing.endpoint_spans import SpannedOutlet

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""How long an offer waits to be taken."""


class WorkerHandoffEngine(Engine, WorkerHandoff, Protocol):
    """An engine that computes prompts for others."""


class PrefillWorker:
    """The handler of `generate`, the records of what it offers, and the endpoint from which that is taken."""

    def __init__(self, engine: WorkerHandoffEngine, endpoint: Endpoint, *, lease: float = LEASE_SECONDS) -> None:
        self.ledger = HandoffLedger()
        self.metrics = HandoffMetrics(self.ledger, engine)
        self._engine = engine
        self._endpoint = endpoint
        self._lease = lease
        self._offers: dict[str, OpenOffer] = {}
        self._holding = 0
        """Prefixes that are about to get a record."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._rooms = MeetingPlace(lease)
        self._route: Route | None = None
        self._sender: Instance | None = None

    async def start(self, bootstrap: tuple[str, int] | None = None) -> None:
        """Send what is taken, from now on until `close`; with `bootstrap`, decode workers may meet it there."""
        if bootstrap is not None:
            await self._rooms.start(*bootstrap)
        runtime, near = self._endpoint.runtime, self._endpoint.id
        await runtime.start()
        where = EndpointId(near.namespace, near.component, HANDOFF_ENDPOINT)
        self._route = Route(route_path(where, runtime.instance_id), self._take, TakeRequest)
        self._sender = Instance(
            instance_id=runtime.instance_id,
            namespace=where.namespace,
            component=where.component,
            endpoint=where.name,
            transport=runtime.plane.transport,
            address=await runtime.plane.serve(self._route),
        )

    async def close(self) -> None:
        """Take back what is still offered; called when the streams have ended."""
        await self._rooms.close()
        if self._route is not None:
            self._route.close()
            await self._route.drain(self._lease)
            self._route.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __call__(self, request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        if isinstance(outlet, SpannedOutlet):
            outlet.last_stage = "hand-off"
        if request.stop_conditions.max_tokens != 1:
            request = structs.replace(request, stop_conditions=structs.replace(request.stop_conditions, max_tokens=1))
        running = self._engine.generate(request, PrefillSink(self, request, context, outlet))
        context.on_stop(lambda _: running.abort())
        context.on_stop(lambda _: self.leave_room(request))

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a task, at most until this worker is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def leave_room(self, request: PreprocessedRequest) -> None:
        """Tell a decode worker that waits for this prompt that there is no offer."""
        if request.bootstrap_info is not None:
            self._rooms.leave(request.bootstrap_info.bootstrap_room)

    async def offer(self, request: PreprocessedRequest, output: EngineOutput, context: Context, outlet: Outlet) -> None:
        """Offer a prompt that is computed. The stream ends when the record does."""
        offer: OpenOffer | None = None
        try:
            routing = request.routing or Routing()
            held = None
            if not routing.lora_name:
                self._holding += 1
                try:
                    held = await self._engine.hold_prefix(request.token_ids, routing.cache_salt)
                finally:
                    self._holding -= 1
            if held is None:
                self.leave_room(request)
                outlet.item(output)
                outlet.end()
                return
            offer = self._open(held, context)
            described = self._describe(offer)
            if request.bootstrap_info is not None:
                self._rooms.put(request.bootstrap_info.bootstrap_room, described)
            outlet.item(structs.replace(output, disaggregated_params={OFFER: msgspec.to_builtins(described)}))
            await offer.wait_until_settled()
            outlet.end()
        except asyncio.CancelledError:
            outlet.fail(Cancelled("the prefill worker is leaving"))
            raise
        except Exception as error:
            log.exception("request %s: its prompt cannot be offered", context.id())
            outlet.fail(from_exception(error))
        finally:
            if offer is not None:
                await asyncio.shield(self._settle(offer))

    def _open(self, held: HeldPrefix, context: Context) -> OpenOffer:
        deadline = asyncio.get_running_loop().time() + self._lease
        record = HandoffRecord(id=secrets.token_hex(16), owner=context.id(), deadline=deadline, blocks=held.blocks)
        self.ledger.offer(record)
        offer = self._offers[record.id] = OpenOffer(record, held, context)
        return offer

    def _describe(self, offer: OpenOffer) -> HandoffOffer:
        assert self._sender
        return HandoffOffer(id=offer.record.id, sender=self._sender, tokens=offer.held.tokens)

    async def _settle(self, offer: OpenOffer) -> None:
        """End the record, as sent or as withdrawn, and release its blocks exactly once."""
        self._offers.pop(offer.record.id, None)
        await self._engine.release_prefix(offer.held)
        self._end_record(offer)

    def _end_record(self, offer: OpenOffer) -> None:
        id = offer.record.id
        if self.ledger.end_transfer(id) is None:
            self.ledger.withdraw(id, expired=offer.expired)
        if not self._holding:
            self.metrics.compare()

    def _take(self, request: TakeRequest, context: Context, outlet: Outlet) -> None:
        sending = self.own(self._send(request, context, outlet))
        context.on_stop(lambda _: sending.cancel())

    async def _send(self, request: TakeRequest, context: Context, outlet: Outlet) -> None:
        began = asyncio.get_running_loop().time()
        offer = self._offers.get(request.id)
        if offer is None or self.ledger.take(request.id, began) is None:
            outlet.fail(Unavailable("this prompt is not offered (any more)"))
            return
        try:
            state = memoryview(await self._engine.held_state(offer.held))
            for start in range(0, max(1, len(state)), CHUNK_BYTES):
                chunk = bytes(state[start : start + CHUNK_BYTES])
                outlet.item(StateChunk(len(state), xxhash.xxh3_64_hexdigest(chunk), chunk))
                await outlet.writable()
            self.metrics.bytes += len(state)
            self.metrics.seconds += asyncio.get_running_loop().time() - began
            outlet.end()
        except asyncio.CancelledError:
            outlet.fail(Cancelled("request was cancelled"))
            raise
        except Exception as error:
            log_failure(context, error)
            outlet.fail(from_exception(error))
        finally:
            offer.finish()


class OpenOffer:
    """A record with its prefix; `wait_until_settled` returns when it was sent, given back or not taken in time."""

    def __init__(self, record: HandoffRecord, held: HeldPrefix, context: Context) -> None:
        self.record = record
        self.held = held
        self.expired = False
        self._finished = asyncio.Event()
        self._forget = context.on_stop(lambda _: self._give_back())

    async def wait_until_settled(self) -> None:
        try:
            async with asyncio.timeout_at(self.record.deadline):
                await self._finished.wait()
        except TimeoutError:
            if self.record.state is HandoffState.TAKEN:
                await self._finished.wait()
            else:
                self.expired = True
        finally:
            self._forget()

    def finish(self) -> None:
        self._finished.set()

    def _give_back(self) -> None:
        # What is being sent is not withdrawn: its receiver may still want it, and ends the transfer otherwise.
        if self.record.state is HandoffState.OFFERED:
            self._finished.set()


class PrefillSink:
    """Passes outputs to the reader; the last output of a computed prompt waits for its offer."""

    __slots__ = ("_context", "_offered", "_outlet", "_request", "_worker")

    def __init__(self, worker: PrefillWorker, request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        self._worker = worker
        self._request = request
        self._context = context
        self._outlet = outlet
        self._offered = False

    def tokens(self, ids: list[int]) -> None:
        self._outlet.tokens(ids)

    def item(self, value: Any) -> None:
        if isinstance(value, EngineOutput) and value.finish_reason == "length":
            self._offered = True
            self._worker.own(self._worker.offer(self._request, value, self._context, self._outlet))
        else:
            self._outlet.item(value)

    def end(self) -> None:
        if not self._offered:
            self._worker.leave_room(self._request)
            self._outlet.end()

    def fail(self, error: DynamoException) -> None:
        if not self._offered:
            self._worker.leave_room(self._request)
            self._outlet.fail(error)
