"""Workers whose engine moves computed prompts itself: the worker carries `disaggregated_params` and keeps the streams.

The stream of a prefill stays open until its reader ends it, at the first token of the decode worker: a prefill worker
that leaves waits for its open streams, and so for engines that still fetch from it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from msgspec import structs

from dynamo.engines.base import Engine, EngineHandoff, Running
from dynamo.handoff.worker.metrics import OPEN_RECORDS, PREFIX
from dynamo.handoff.worker.prefill import LEASE_SECONDS
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import Context
from dynamo.runtime.metrics import Labels, MetricFamily
from dynamo.runtime.stream import Handler, Outlet
from dynamo.runtime.tracing.endpoint_spans import SpannedOutlet

log = logging.getLogger(__name__)


class EngineHandoffEngine(Engine, EngineHandoff, Protocol):
    """An engine with both halves of the contract."""


class EnginePrefillWorker:
    """The handler of a prefill worker, and the gauge of its open offers."""

    def __init__(self, engine: EngineHandoffEngine, *, lease: float = LEASE_SECONDS) -> None:
        self.open = 0
        self._engine = engine
        self._lease = lease

    def __call__(self, request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        if isinstance(outlet, SpannedOutlet):
            outlet.last_stage = "hand-off"
        if request.stop_conditions.max_tokens != 1:
            request = structs.replace(request, stop_conditions=structs.replace(request.stop_conditions, max_tokens=1))
        try:
            asked = self._engine.prefilling(request)
        except DynamoException as error:
            outlet.fail(error)
            return
        sink = LeaseSink(self, outlet, self._lease)
        running = self._engine.generate(asked, sink)

        def stop(_: bool) -> None:
            running.abort()
            sink.release()

        context.on_stop(stop)

    def families(self, labels: Labels) -> list[MetricFamily]:
        return [OPEN_RECORDS.family([(labels, self)], PREFIX)]


class LeaseSink:
    """Passes outputs to the reader; the stream of an offer ends at `release`, or with the lease."""

    __slots__ = ("_lease", "_offered", "_outlet", "_timer", "_worker")

    def __init__(self, worker: EnginePrefillWorker, outlet: Outlet, lease: float) -> None:
        self._worker = worker
        self._outlet = outlet
        self._lease = lease
        self._offered = False
        self._timer: asyncio.TimerHandle | None = None

    def tokens(self, ids: list[int]) -> None:
        self._outlet.tokens(ids)

    def item(self, value: Any) -> None:
        if isinstance(value, EngineOutput) and value.disaggregated_params is not None:
            self._offered = True
        self._outlet.item(value)

    def end(self) -> None:
        if not self._offered:
            self._outlet.end()
            return
        self._worker.open += 1
        self._timer = asyncio.get_running_loop().call_later(self._lease, self.release)

    def fail(self, error: DynamoException) -> None:
        self._outlet.fail(error)

    def release(self) -> None:
        """The reader needs the offer no longer. Safe twice, and before there is one."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._worker.open -= 1
            self._outlet.end()


def engine_decode_worker(engine: EngineHandoffEngine, *, lease: float = LEASE_SECONDS) -> Handler:
    """The handler of a decode worker: it computes the prompts that it cannot continue from."""

    def handle(request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        if request.prefill_result is not None or request.bootstrap_info is not None:
            try:
                continued = engine.continuing(request)
            except DynamoException as error:
                log.warning("request %s: computing the prompt here: %s", context.id(), error.message)
                request = structs.replace(request, prefill_result=None, bootstrap_info=None)
            else:
                if request.prefill_result is not None:
                    Fetch(engine, request, continued, context, outlet, lease)
                    return
                request = continued
        running = engine.generate(request, outlet)
        context.on_stop(lambda _: running.abort())

    return handle


class Fetch:
    """Passes the outputs of a decode engine that fetches a prompt to the reader.

    A transfer from a process that hangs never ends, and engines wait for it. A prompt without a token when the offer's
    lease has ended may be gone in any case: the engine computes it.
    """

    __slots__ = ("_given_up", "_outlet", "_running", "_timer")
    _running: Running

    def __init__(
        self, engine: EngineHandoffEngine, request: PreprocessedRequest, continued: PreprocessedRequest,
        context: Context, outlet: Outlet, lease: float,
    ) -> None:  # fmt: skip
        self._outlet = outlet
        self._given_up = False

        def give_up() -> None:
            log.warning("request %s: its prompt did not come within %g s: computing it here", context.id(), lease)
            self._given_up = True
            self._running.abort()
            self._running = engine.generate(structs.replace(request, prefill_result=None), outlet)

        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(lease, give_up)
        self._running = engine.generate(continued, self)
        context.on_stop(lambda _: self._abort())

    def _abort(self) -> None:
        self._receive_first()
        self._running.abort()

    def _receive_first(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tokens(self, ids: list[int]) -> None:
        if self._timer is not None:
            self._receive_first()
        if not self._given_up:
            self._outlet.tokens(ids)

    def item(self, value: Any) -> None:
        self._receive_first()
        if not self._given_up:
            self._outlet.item(value)

    def end(self) -> None:
        self._receive_first()
        if not self._given_up:
            self._outlet.end()

    def fail(self, error: DynamoException) -> None:
        self._receive_first()
        if not self._given_up:
            self._outlet.fail(error)
