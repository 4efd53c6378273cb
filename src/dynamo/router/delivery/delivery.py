"""Delivers a request to a worker, and to another one when that fails, as one unbroken stream to the client.

Place, connect, send; skip instances that cannot be reached; migrate when a stream breaks. The new worker gets the
prompt and what was generated and continues it; or, if its engine cannot continue a guided answer, it begins again and
repeats what was generated. A request that may migrate waits for an instance when there is none, with back-off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from time import perf_counter
from typing import Any, Protocol

from msgspec import Struct, structs

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Tenant
from dynamo.protocols.errors import (
    Cancelled,
    ConnectionTimeout,
    DynamoException,
    ProtocolError,
    Unavailable,
    WorkerBusy,
)
from dynamo.protocols.streams import StreamClaim
from dynamo.protocols.worker_name import worker_name
from dynamo.router.config import RequestBackoff
from dynamo.router.delivery.continuation import correct_usage, is_guided, limit_cached
from dynamo.router.delivery.history import DeliveryHistory
from dynamo.router.delivery.progress import DeliveryProgress, DeliveryState, Next
from dynamo.router.delivery.repetition import Repetition
from dynamo.router.placement import Placement, PlaceRequest, pinned_instance
from dynamo.router.stream_watch import UNWATCHED, StallLimits, StreamWatch
from dynamo.router.suspects import Suspects, Suspicion, is_loss
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import CancelStream, nothing_to_cancel
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

_NOTHING = EngineOutput()


class Companion(Protocol):
    """What one delivery does beside each of its attempts: a hand-off has another worker compute the prompt."""

    cached_before: int | None
    """Tokens of the prompt that were cached before this request; None: as the worker says."""

    async def prepare(self, request: Any, placement: Placement, context: Context) -> Any:
        """The request to send to the placement's worker. Raises nothing but CancelledError."""

    def computed(self) -> None:
        """The worker has computed the prompt, or continued after it."""

    def release(self) -> None:
        """The attempt is over. Safe twice."""


def alone() -> None:
    """A delivery without a companion."""


class KeptAt(Struct, frozen=True):
    """Where a stream is kept that another frontend has left unread."""

    instance_id: int
    continues: bool = False
    """The worker continues what another one began."""


class DeliveryOptions(Struct, frozen=True, kw_only=True):
    limit: int = 0
    """Migrations of one request."""
    max_seq_len: int | None = None
    """A request whose prompt and answer have more tokens does not migrate."""
    pinned: int | None = None
    """The instance that the request goes to, or it fails; as if the request itself named it."""
    watch: StreamWatch | None = None
    """Finds streams that stall."""
    backoff: Callable[[], RequestBackoff] = RequestBackoff
    """Makes the back-off of one wait for an instance."""
    resumes_guided: Callable[[], bool] = lambda: False
    """Whether the workers can continue a guided answer."""
    beside: Callable[[], Companion | None] = alone
    claim: StreamClaim | None = None
    """What names the stream to its worker, if it is to outlive this process."""
    kept_at: KeptAt | None = None
    """The worker that keeps the stream already: it is read from there, and computed anew only if that fails."""
    suspects: Suspects | None = None
    """Ends a request that may have ended workers."""
    tenant: Tenant | None = None
    """Whose request it is."""


class Delivery:
    """Drives one request's `DeliveryProgress`: the sink of every attempt, which passes their streams on as one."""

    def __init__(
        self,
        place: PlaceRequest,
        instances: InstanceSet,
        request: Any,
        context: Context,
        sink: Sink,
        options: DeliveryOptions = DeliveryOptions(),  # noqa: B008 - frozen
    ) -> None:
        pinned = pinned_instance(request) if options.pinned is None else options.pinned
        self.progress = DeliveryProgress(
            request,
            limit=options.limit,
            max_seq_len=options.max_seq_len,
            pinned=pinned is not None,
            resumes_guided=not is_guided(request) or options.resumes_guided(),
        )
        self.history = DeliveryHistory()
        self.placement: Placement | None = None
        """The current one, or the last."""
        self.sink = sink
        """Until it is started, a stage may be put before it."""
        self._options = options
        self._place = partial(place, request_id=context.id(), pinned=pinned)
        self._instances = instances
        self._context = context
        self._beside = options.beside()
        self._suspicion: Suspicion | None = None
        """What is counted of it against requests that end workers."""
        self._watch = options.watch or StreamWatch(StallLimits(first=0, between=0))
        self._clock = UNWATCHED
        """The clock of the current stream; while another worker computes the prompt, there is none."""
        self._cancel: CancelStream = nothing_to_cancel
        self._cancelled_for: DynamoException | None = None
        """Why the current stream is being cancelled here, rather than by the client."""
        self._hung = False
        """The current worker is taken to be hung."""
        self._backoff: RequestBackoff | None = None
        """The back-off of the wait under way, which ends with the first output."""
        self._kept_at = options.kept_at
        """Until it was tried."""
        self._starting: asyncio.Task[Any] | None = None
        """Waits in `start` for an instance."""
        self._aborted: DynamoException | None = None
        """What `start` raises instead of waiting on."""
        self._migrating: asyncio.Task[None] | None = None
        self._says_nothing = False
        """The last item of the worker has none of an output's fields."""

    @property
    def request(self) -> Any:
        return self.progress.request

    @property
    def instance_id(self) -> int | None:
        return self.placement.instance_id if self.placement else None

    async def start(self) -> None:
        """Send the request; raises when there is no instance to send it to."""
        self._starting = task = asyncio.current_task()
        self.history.asked_at = self.history.asked_at or perf_counter()
        lost: DynamoException | None = None
        try:
            if suspects := self._options.suspects:
                self._suspicion = suspects.admit(self.request, self._options.tenant, self._suspicion)
            while True:
                try:
                    lost = await self._send(lost)
                    if lost is None:
                        return
                except DynamoException as error:
                    pause = self._pause() if self.progress.waits(error) else None
                    if pause is None:
                        raise
                    # All failed, or there is none. Retry when one joins, and after a pause in any case.
                    await self._instances.joined(within=pause)
        except asyncio.CancelledError:
            if self._aborted and task and task.uncancel() == 0:
                raise self._aborted from None
            raise
        finally:
            self._starting = None

    async def _send(self, lost: DynamoException | None) -> DynamoException | None:
        """Send the request to the first instance that can be reached; an error if its connection was lost meanwhile."""
        progress, instances = self.progress, self._instances
        request = progress.request
        if progress.generated:
            request = progress.next_request(resumes_guided=self._options.resumes_guided())
        kept_at = self._kept_at
        placement = await self._place_at(kept_at, request) if kept_at else None
        attaches = placement is not None
        if placement is None:
            place: Callable[..., Awaitable[Placement]] = partial(self._place, request)
            if self._suspicion and not progress.pinned and (shunned := self._suspicion.shunned()):
                place = partial(self._place_apart, request, shunned, self._suspicion.must_shun)
            placement = await instances.reach(place, progress.excluded, pinned=progress.pinned, last=lost)
        self.placement = placement
        if not self.history.placed_at:
            self.history.placed_at = perf_counter()
            self.history.waited = placement.decision.waited if placement.decision else 0.0
        progress.sent()
        if claim := self._options.claim:
            self._context.claim = structs.replace(claim, act="attach", facts=b"") if attaches else claim
        if attaches:
            sent = None  # the worker has it
            progress.continues = bool(kept_at and kept_at.continues)
        else:
            sent = await self._beside.prepare(request, placement, self._context) if self._beside else request
        tokens = isinstance(request, PreprocessedRequest)
        prompt_tokens = len(request.token_ids) if tokens else 0
        self._clock = self._watch.add(self, placement.channel, placement.instance_id, prompt_tokens)
        instances.request_sent(placement.instance_id)
        if self._suspicion:
            self._suspicion.sent(placement.instance_id)
        repeats = progress.generated if not progress.continues else None
        sink = Repetition(repeats, self) if repeats else self
        item_type = EngineOutput if tokens else Any
        try:
            self._cancel = placement.channel.send(
                placement.routed(sent), self._context, sink, item_type=item_type, columnar=tokens
            )
        except BaseException as error:
            self._release()
            if not isinstance(error, DynamoException) or progress.pinned:
                raise
            instances.mark_unreachable(placement.instance_id, error)
            progress.unsent(placement.instance_id)
            return error
        return None

    async def _place_apart(
        self, request: Any, shunned: Collection[int], always: bool, *, avoid: Collection[int]
    ) -> Placement:
        """Avoid these workers too, unless there are no others; `always`: even then."""
        apart = {*avoid, *shunned}
        return await self._place(request, avoid=apart if always or self._instances.routable(apart) else avoid)

    async def _place_at(self, kept_at: KeptAt, request: Any) -> Placement | None:
        """Book the request where its stream is kept; None if that worker is gone."""
        self._kept_at = None
        try:
            return await self._instances.reach(
                partial(self._place, request, pinned=kept_at.instance_id), set(), pinned=True
            )
        except DynamoException as error:
            log.warning("request %s: worker %s: %s", self._context.id(), worker_name(kept_at.instance_id), error)
            return None

    def _pause(self) -> float | None:
        """How long to wait for an instance; None to give up."""
        if self._backoff is None:
            self._backoff = self._options.backoff()
        return self._backoff.pause()

    async def close(self) -> None:
        """Cancel a migration under way and release the reservation. The sink receives nothing more."""
        self.progress.over()
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
        self._hung = hung
        self._cancel_for(error)

    def unheard(self, error: ConnectionTimeout) -> None:
        assert self.placement
        self._instances.inhibit(self.placement.instance_id)
        if self.progress.may_move:
            self._hung = True
            self._cancel_for(error)

    def abort(self, error: DynamoException) -> None:
        """End it with this error, wherever it is."""
        self.progress.stay()
        if self._migrating and not self._migrating.done():
            self.progress.over()
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
        if not self._clock.moved:
            self._moved()
        generated = self.progress.generated
        if generated is not None:
            generated += ids
        if self.placement is not None:
            self.placement.output_tokens += len(ids)
        self.sink.tokens(ids)

    def item(self, value: Any) -> None:
        if not isinstance(value, EngineOutput) or value.token_ids or value.text:
            if not self._clock.moved:
                self._moved()
        else:
            self._stirred()
            self._says_nothing = value == _NOTHING
        self.progress.output(value)
        if self.placement is not None and isinstance(value, EngineOutput):
            self.placement.output_tokens += len(value.token_ids or ())
            if value.completion_usage:
                details = value.completion_usage.prompt_tokens_details or {}
                self.placement.cached_tokens = details.get("cached_tokens")
        if isinstance(value, EngineOutput) and value.completion_usage:
            if self.progress.continues:
                correct_usage(value.completion_usage, len(self.request.token_ids))
            elif self._beside and self._beside.cached_before is not None:
                limit_cached(value.completion_usage, self._beside.cached_before)
        self.sink.item(value)

    def repeated(self) -> None:
        """See `RepeatingSink`, as for `differs`."""
        if not self._clock.moved:
            self._moved()

    def differs(self) -> None:
        self._cancel(True)
        self._release()
        error = Unavailable("a worker failed, and the next one answered differently from what was already sent")
        self._give_up(error, "failure")

    def end(self) -> None:
        assert self.placement
        if self._says_nothing and self.progress.prompt_pending:
            self.fail(ProtocolError("the engine sent neither token_ids, text nor a finish_reason"))
            return
        self._instances.request_answered(self.placement.instance_id)
        self.history.end_migration("success")
        self._release()
        self.progress.over()
        self.sink.end()

    def fail(self, error: DynamoException) -> None:
        assert self.placement
        instance_id = self.placement.instance_id
        error = self._cancelled_for or error
        lost, self._hung = is_loss(error) or self._hung, False
        pending, suspicion = self.progress.prompt_pending, self._suspicion
        self._release(lost=lost)
        if error.is_engine_fault:
            self._instances.request_failed(instance_id)
        if self._context.is_stopped():
            if suspicion:
                suspicion.settled()
            self._give_up(error, "cancelled")
            return
        if error.migratable and not isinstance(error, WorkerBusy):
            self._instances.inhibit(instance_id)
        free = False
        if lost and (suspects := self._options.suspects):
            suspicion = self._suspicion = suspicion or suspects.suspicion(self.request, self._options.tenant)
            generated = len(self.progress.generated or ())
            verdict = suspicion.worker_lost(instance_id, generated=None if pending else generated)
            if verdict and not self.progress.complete:
                self._give_up(verdict, "failure")
                return
            free = suspicion.explained(instance_id)
        match self.progress.broken(error, instance_id, free=free):
            case Next.End:
                self.sink.end()
                return
            case Next.Fail | Next.TooLong as follows:
                self.history.too_long = follows is Next.TooLong
                self._give_up(error, "failure")
                return
            case Next.Move:
                self.history.begin_migration(instance_id)
                self._instances.request_moved(instance_id)
                log.warning(
                    "request %s: worker %s failed after %d tokens (%s), moving it to another",
                    self._context.id(), worker_name(instance_id), len(self.progress.generated or ()), error,
                )  # fmt: skip
        self._migrating = asyncio.create_task(self._migrate(error))

    async def _migrate(self, error: DynamoException) -> None:
        task = asyncio.current_task()
        assert task
        unsubscribe = self._context.on_stop(lambda _: task.cancel())
        try:
            await self.start()
        except asyncio.CancelledError:
            if self.progress.state is not DeliveryState.Over:
                self._give_up(Cancelled("request was cancelled"), "cancelled")
            raise
        except DynamoException as next_error:
            log.warning("request %s: no instance left to move it to: %s", self._context.id(), next_error)
            began = self.history.first_output_time is not None
            self._give_up(error if began or isinstance(error, WorkerBusy) else next_error, "failure")
        except Exception:
            log.exception("request %s cannot be moved", self._context.id())
            self._give_up(error, "failure")
        finally:
            unsubscribe()

    def _moved(self) -> None:
        """Tokens have come: the worker's first ones, or the first since the last sweep."""
        self._clock.moved = True
        if self.progress.generating():
            assert self.placement
            self._backoff = None
            if self._suspicion:
                self._suspicion.answered()
            self.history.first_token()
            self.placement.first_token()
            if self._beside:
                self._beside.computed()

    def _stirred(self) -> None:
        """Something came that is no token."""
        self._watch.touch(self._clock)
        if self.progress.answering():
            self._backoff = None
            self.history.first_output()

    def _give_up(self, error: DynamoException, outcome: str) -> None:
        self.progress.over()
        self.history.end_migration(outcome)
        self.sink.fail(error)

    def _release(self, *, lost: bool = False) -> None:
        if self._suspicion and not lost:
            self._suspicion.settled()
        if self._beside:
            self._beside.release()
        self._watch.remove(self._clock)
        if self.placement:
            self.placement.release()
