"""Delivers a request to a worker, and to another one when that fails, as one unbroken stream to the client.

Place, connect, send; skip instances that cannot be reached; migrate when a stream breaks. The new worker gets the
prompt and what was generated and continues it; or, if its engine cannot continue a guided answer, it begins again and
repeats what was generated. A request that may migrate waits for an instance when there is none, with back-off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from dynamo.handoff.router.split import Splitter
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import (
    Cancelled,
    ConnectionTimeout,
    DynamoException,
    EngineShutdown,
    ResourceExhausted,
    Unavailable,
    WorkerBusy,
)
from dynamo.router.config import RequestBackoff as Backoff
from dynamo.router.delivery.continuation import continuation, correct_usage, is_complete, is_guided, repeatable
from dynamo.router.delivery.history import DeliveryHistory
from dynamo.router.delivery.repetition import Repetition
from dynamo.router.placement import Placement, PlaceRequest, pinned_instance
from dynamo.router.stream_watch import StallLimits, StreamClock, StreamWatch
from dynamo.router.suspects import Suspects, is_loss
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import CancelStream, nothing_to_cancel
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class Delivery:
    """One request on its way. It is the sink of every attempt and passes their streams to `sink` as one.

    The request may migrate `limit` times, while prompt and answer have no more than `max_seq_len` tokens. A `pinned`
    request, or one that names its instance itself, goes there or fails. `backoff` is called for each wait. `watch`
    finds streams that stall. `resumes_guided` says whether the workers can continue a guided answer. With `suspects` a
    request that may have ended workers ends too.
    """

    _clock: StreamClock
    """Of the current stream."""

    def __init__(
        self,
        place: PlaceRequest,
        instances: InstanceSet,
        request: Any,
        context: Context,
        sink: Sink,
        *,
        pinned: int | None = None,
        limit: int = 0,
        max_seq_len: int | None = None,
        watch: StreamWatch | None = None,
        backoff: Callable[[], Backoff] = Backoff,
        splitter: Splitter | None = None,
        resumes_guided: Callable[[], bool] = lambda: False,
        suspects: Suspects | None = None,
    ) -> None:
        self.history = DeliveryHistory()
        self.placement: Placement | None = None
        """The current one, or the last."""
        self._place = place
        self._instances = instances
        self._guided = is_guided(request)
        self._context = context
        self._request_id = context.id()
        self.sink = sink
        """Until it is started, a stage may be put before it."""
        self._split = splitter.begin() if splitter else None
        """Where another worker may compute the prompt."""
        self._pinned = pinned_instance(request) if pinned is None else pinned
        self._migrations_left = limit if self._pinned is None else 0
        self._may_wait = self._migrations_left > 0
        self._max_seq_len = max_seq_len
        self._resumes_guided = resumes_guided
        if self._guided and self._may_wait and not resumes_guided():
            request = repeatable(request)
        self.request = request
        self._suspicion = suspects.suspicion(request) if suspects else None
        self._generated: list[int] = []
        """Collected for a continuation while one is possible."""
        self._continues = False
        """The current worker was sent a continuation."""
        self._excluded: set[int] = set()
        """Instances that failed since the last pause, and those that are leaving."""
        self._leaving: set[int] = set()
        self._met_busy = False
        """A worker refused the request because it is at its own limit."""
        self._watch = watch or StreamWatch(StallLimits(first=0, between=0))
        self._cancel: CancelStream = nothing_to_cancel
        self._cancelled_for: DynamoException | None = None
        """Why the current stream is being cancelled here, rather than by the client."""
        self._new_backoff = backoff
        self._backoff: Backoff | None = None
        """Of the wait under way, which ends with the first output."""
        self._starting: asyncio.Task[Any] | None = None
        """Waits in `start` for an instance."""
        self._aborted: DynamoException | None = None
        """What `start` raises instead of waiting on."""
        self._migrating: asyncio.Task[None] | None = None
        self._closed = False
        self._silent = True
        """The current worker has produced nothing yet."""
        self._watched = False
        """The current stream has a clock; while another worker computes the prompt, there is none."""
        self._prompt_pending = False
        """The current worker is not known to have computed the prompt. A plain flag, as it is read for every token."""
        self._finished = False

    @property
    def instance_id(self) -> int | None:
        return self.placement.instance_id if self.placement else None

    async def start(self) -> None:
        """Send the request; raises when there is no instance to send it to."""
        self._starting = task = asyncio.current_task()
        try:
            await self._until_sent()
        except asyncio.CancelledError:
            if self._aborted and task and task.uncancel() == 0:
                raise self._aborted from None
            raise
        finally:
            self._starting = None

    async def _until_sent(self) -> None:
        if self._suspicion:
            self._suspicion.check()
        while True:
            self._continues = bool(self._generated) and (not self._guided or self._resumes_guided())
            request = continuation(self.request, self._generated) if self._continues else self.request
            try:
                await self._try_instances(request)
                return
            except DynamoException as error:
                pause = self._pause(error)
                if pause is None:
                    raise
            # All instances failed, or there is none. Retry when one joins, and after a pause in any case.
            self._excluded = set(self._leaving)
            await self._instances.joined(within=pause)

    async def _try_instances(self, request: Any) -> None:
        """Send the request to the first instance that can be reached."""

        async def begin(placement: Placement) -> None:
            await placement.connect()
            self.history.placed()
            self.placement = placement
            self._silent = self._prompt_pending = True
            sent = await self._split.prefilled(request, placement, self._context) if self._split else request
            prompt_tokens = len(request.token_ids) if isinstance(request, PreprocessedRequest) else 0
            self._clock = self._watch.add(self, placement.channel, placement.instance_id, prompt_tokens)
            self._watched = True
            self._instances.request_sent(placement.instance_id)
            if self._suspicion:
                self._suspicion.sent(placement.instance_id)
            repeats = self._generated and not self._continues
            try:
                sink = Repetition(self._generated, self) if repeats else self
                self._cancel = placement.send(sent, self._context, sink)
            except BaseException:
                self._watch.remove(self._clock)
                raise

        await reach(
            self._place,
            self._instances,
            request,
            begin,
            request_id=self._request_id,
            pinned=self._pinned,
            excluded=self._excluded,
        )

    def _pause(self, error: DynamoException) -> float | None:
        """How long to wait for an instance after this error; None to give up."""
        waitable = error.migratable or isinstance(error, Unavailable | ResourceExhausted)
        # A new request is refused when all workers are busy; one that has begun is worth waiting for.
        refused = not self.history.migrations and (self._met_busy or isinstance(error, ResourceExhausted))
        if not self._may_wait or not waitable or refused:
            return None
        if self._backoff is None:
            self._backoff = self._new_backoff()
        return self._backoff.pause()

    async def close(self) -> None:
        """Cancel a migration under way and release the booking. The sink receives nothing more."""
        self._closed = True
        if self._migrating:
            self._migrating.cancel()
            await asyncio.gather(self._migrating, return_exceptions=True)
            self.history.end_migration("cancelled")
        self._release()

    def stalled(self, error: ConnectionTimeout, *, hung: bool) -> None:
        """See `Watched`, as for `unheard`."""
        if hung:
            assert self.placement
            self._instances.inhibit(self.placement.instance_id)
        self._cancel_for(error)

    def unheard(self, error: ConnectionTimeout) -> None:
        assert self.placement
        self._instances.inhibit(self.placement.instance_id)
        if self._migrations_left and not self._too_long():
            self._cancel_for(error)

    def abort(self, error: DynamoException) -> None:
        """End it with this error, wherever it is."""
        self._migrations_left = 0
        if self._migrating and not self._migrating.done():
            self._closed = True
            self._migrating.cancel()
            self._give_up(error, "cancelled")
        elif self._starting:
            self._aborted = error
            self._starting.cancel()
        else:
            self._cancel_for(error)

    def _cancel_for(self, error: DynamoException) -> None:
        """Cancel the stream at its worker, so that nothing is produced twice; it fails here with `error`."""
        self._cancelled_for = error
        self._cancel(True)
        self._cancelled_for = None

    def tokens(self, ids: list[int]) -> None:
        self._clock.moved = True
        if self._prompt_pending:
            self._prompt_computed()
        if self._migrations_left:
            self._generated += ids
        self.sink.tokens(ids)

    def item(self, value: Any) -> None:
        self._clock.moved = True
        if self._silent:
            self._first_output()
        if not isinstance(value, EngineOutput):
            if self._prompt_pending:
                self._prompt_computed()
            self.sink.item(value)
            return
        if self._prompt_pending and (value.token_ids or value.text):
            self._prompt_computed()
        if value.text and not value.token_ids:
            # Text without token ids cannot be continued by another worker.
            self._migrations_left = 0
        if self._migrations_left:
            self._generated += value.token_ids
        if value.finish_reason is not None:
            self._finished = True
        if value.completion_usage:
            if self._continues:
                correct_usage(value.completion_usage, len(self.request.token_ids))
            elif self._split:
                self._split.correct_usage(value.completion_usage)
        self.sink.item(value)

    def repeated(self) -> None:
        """See `RepeatingSink`, as for `differs`."""
        self._clock.moved = True
        if self._prompt_pending:
            self._prompt_computed()

    def differs(self) -> None:
        self._cancel(True)
        self._release()
        error = Unavailable("a worker failed, and the next one answered differently from what was already sent")
        self._give_up(error, "failure")

    def end(self) -> None:
        assert self.placement
        self._instances.request_answered(self.placement.instance_id)
        self.history.end_migration("success")
        self._release()
        self.sink.end()

    def fail(self, error: DynamoException) -> None:
        assert self.placement
        instance_id = self.placement.instance_id
        error = self._cancelled_for or error
        may_be_the_cause = self._prompt_pending and is_loss(error)
        self._release(lost=may_be_the_cause)
        if error.is_engine_fault:
            self._instances.request_failed(instance_id)
        if not error.migratable or self._context.is_stopped():
            self._give_up(error, "cancelled" if self._context.is_stopped() else "failure")
            return
        if not isinstance(error, WorkerBusy):
            self._instances.inhibit(instance_id)
        if self._finished or (self._migrations_left and is_complete(self.request, self._generated)):
            # The worker died between its last token and the end of the stream.
            self.sink.end()
            return
        if may_be_the_cause and self._suspicion and (verdict := self._suspicion.worker_lost(instance_id)):
            self._give_up(verdict, "failure")
            return
        self._excluded.add(instance_id)
        if isinstance(error, EngineShutdown):
            self._leaving.add(instance_id)
        # A worker that refused the request has done nothing: trying the next one is not a migration.
        self._met_busy |= isinstance(error, WorkerBusy)
        refused = isinstance(error, EngineShutdown | WorkerBusy) and self._silent and self._pinned is None
        if not refused:
            if self._migrations_left == 0 or self._too_long():
                self.history.too_long = self._migrations_left > 0
                self._give_up(error, "failure")
                return
            self._migrations_left -= 1
            self.history.begin_migration(instance_id)
            log.warning(
                "request %s: instance %x failed after %d tokens (%s), moving it to another",
                self._request_id, instance_id, len(self._generated), error,
            )  # fmt: skip
        self._migrating = asyncio.create_task(self._migrate(error))

    async def _migrate(self, error: DynamoException) -> None:
        task = asyncio.current_task()
        assert task
        unsubscribe = self._context.on_stop(lambda _: task.cancel())
        try:
            await self.start()
        except asyncio.CancelledError:
            if not self._closed:
                self._give_up(Cancelled("request was cancelled"), "cancelled")
            raise
        except DynamoException as next_error:
            log.warning("request %s: no instance left to move it to: %s", self._request_id, next_error)
            began = self.history.first_output_time is not None
            self._give_up(error if began or isinstance(error, WorkerBusy) else next_error, "failure")
        except Exception:
            log.exception("request %s cannot be moved", self._request_id)
            self._give_up(error, "failure")
        finally:
            unsubscribe()

    def _too_long(self) -> bool:
        if self._max_seq_len is None or not isinstance(self.request, PreprocessedRequest):
            return False
        return len(self.request.token_ids) + len(self._generated) > self._max_seq_len

    def _first_output(self) -> None:
        self._silent = False
        self._backoff = None
        if not isinstance(self.request, PreprocessedRequest):
            # The next output is text, which is of no use to another worker.
            self._migrations_left = 0
        self.history.first_output()

    def _prompt_computed(self) -> None:
        assert self.placement
        self._prompt_pending = False
        self._first_output()
        self.history.end_migration("success")
        if self._suspicion:
            self._suspicion.answered()
        self.placement.first_token()
        if self._split:
            self._split.computed()

    def _give_up(self, error: DynamoException, outcome: str) -> None:
        self.history.end_migration(outcome)
        self.sink.fail(error)

    def _release(self, *, lost: bool = False) -> None:
        self._prompt_pending = False
        if self._suspicion and not lost:
            self._suspicion.settled()
        if self._split:
            self._split.end()
        if self._watched:
            self._watched = False
            self._watch.remove(self._clock)
        if self.placement:
            self.placement.release()


async def reach(
    place: PlaceRequest,
    instances: InstanceSet,
    request: Any,
    begin: Callable[[Placement], Awaitable[None]],
    *,
    request_id: str = "",
    pinned: int | None = None,
    excluded: set[int] | None = None,
) -> Placement:
    """Place a request where `begin` succeeds. Each instance where it fails is added to `excluded`."""
    excluded = set() if excluded is None else excluded
    last: DynamoException | None = None
    while True:
        try:
            placement = await place(request, request_id=request_id, pinned=pinned, avoid=excluded)
        except Unavailable:
            if last is None:
                raise
            raise instances.none_reachable(last) from last
        try:
            await begin(placement)
            return placement
        except DynamoException as error:
            if pinned is not None:
                raise
            instances.mark_unreachable(placement.instance_id, error)
            excluded.add(placement.instance_id)
            last = error
