"""The way of a request to a worker, and to the next one when that fails: the client reads one unbroken stream.

Choose, book, connect, send; pass over instances that cannot be reached; migrate when a stream breaks. The new worker
gets the prompt and everything generated so far, so it continues where the old one stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from time import perf_counter
from typing import Any

from msgspec import Struct

from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.errors import Cancelled, DynamoException, EngineShutdown
from dynamo.router.attempt import Attempt, Place, reach
from dynamo.router.continuation import can_continue, continuation, count_prompt, is_complete
from dynamo.router.placement import Placement
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
"""Back-off before failed instances are tried again; doubles each time."""
LONGEST_PAUSE_SECONDS = 2.0


class Move(Struct, frozen=True):
    """One migration, from the failure of the old worker to its outcome."""

    kind: str
    """`new_request` when nothing had been generated, else `ongoing_request`."""
    outcome: str
    """`success` (the new worker produced output), `failure` or `cancelled`."""
    seconds: float


class DeliveryHistory:
    """What happened to a delivery and when, for whoever measures it."""

    __slots__ = ("_moving", "first_output_time", "migrations", "moves", "placed_at", "restarts")

    def __init__(self) -> None:
        self.placed_at = 0.0
        """When it got its first place, on the clock of `perf_counter`."""
        self.first_output_time: float | None = None
        """On the clock of `time.time`."""
        self.migrations = 0
        self.restarts = 0
        """The migrations before anything was generated."""
        self.moves: tuple[Move, ...] = ()
        """The migrations that are over."""
        self._moving: tuple[str, float] | None = None

    def placed(self) -> None:
        self.placed_at = self.placed_at or perf_counter()

    def first_output(self) -> None:
        if self.first_output_time is None:
            self.first_output_time = time.time()

    def moving(self) -> None:
        """A migration begins; the one under way, if any, has failed."""
        self.moved("failure")
        fresh = self.first_output_time is None
        self.migrations += 1
        self.restarts += fresh
        self._moving = ("new_request" if fresh else "ongoing_request", perf_counter())

    def moved(self, outcome: str) -> None:
        """The migration under way, if any, is over."""
        if self._moving:
            kind, began = self._moving
            self._moving = None
            self.moves += (Move(kind, outcome, perf_counter() - began),)


class Delivery:
    """One request on its way. It is the sink of every attempt and hands their streams on as one.

    `limit` is how often it may migrate. A `pinned` request goes to its instance or fails.
    """

    def __init__(
        self,
        place: Place,
        instances: InstanceSet,
        request: Any,
        context: Context,
        sink: Sink,
        *,
        pinned: int | None = None,
        limit: int = 0,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self.history = DeliveryHistory()
        self.attempt: Attempt | None = None
        """The current one, or the last."""
        self._place = place
        self._instances = instances
        self._request = request
        self._context = context
        self._sink = sink
        self._pinned = pinned
        self._migrations_left = limit if pinned is None else 0
        self._can_continue = can_continue(request)
        self._generated: list[int] = []
        """What a continuation needs; not collected once there can be none."""
        self._excluded: set[int] = set()
        self._broken: set[int] = set()
        """The excluded instances that may be tried again: they neither left nor are unreachable."""
        self._pause = pause
        self._retry: asyncio.Task[None] | None = None
        self._closed = False
        self._prompt_waits = False
        """The current attempt was sent and its prompt is not known to be computed: asked for every token."""
        self._finished = False

    @property
    def placement(self) -> Placement | None:
        """Where it is, or was last."""
        return self.attempt.placement if self.attempt else None

    @property
    def instance_id(self) -> int | None:
        return self.attempt.placement.instance_id if self.attempt else None

    async def start(self) -> None:
        """Send the request; raises when there is no instance to send it to."""
        request = continuation(self._request, self._generated) if self._generated else self._request

        async def begin(attempt: Attempt) -> None:
            await attempt.connect()
            self.history.placed()
            self.attempt = attempt
            self._prompt_waits = True
            attempt.send(request, self._context, self)

        while True:
            try:
                await reach(
                    self._place,
                    self._instances,
                    request,
                    begin,
                    request_id=self._context.id(),
                    pinned=self._pinned,
                    excluded=self._excluded,
                )
                return
            except DynamoException:
                if not self._broken:
                    raise
            # All others failed. Retry the failed instances, with back-off.
            self._excluded -= self._broken
            self._broken.clear()
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    async def close(self) -> None:
        """End a retry that is under way and release the booking. The sink receives nothing more from here."""
        self._closed = True
        if self._retry:
            self._retry.cancel()
            await asyncio.gather(self._retry, return_exceptions=True)
            self.history.moved("cancelled")
        self._release()

    def tokens(self, ids: list[int]) -> None:
        if self._prompt_waits:
            self._prompt_computed()
        if self._migrations_left:
            self._generated += ids
        self._sink.tokens(ids)

    def item(self, value: Any) -> None:
        if self.attempt and self.attempt.silent:
            self._first_output(self.attempt)
        if not isinstance(value, EngineOutput):
            if self._prompt_waits:
                self._prompt_computed()
            self._sink.item(value)
            return
        if self._prompt_waits and (value.token_ids or value.text):
            self._prompt_computed()
        if value.text and not value.token_ids:
            # Text without token ids cannot be continued by another worker.
            self._migrations_left = 0
        if self._migrations_left:
            self._generated += value.token_ids
        if value.finish_reason is not None:
            self._finished = True
        if self.history.migrations and value.completion_usage:
            count_prompt(value.completion_usage, len(self._request.token_ids))
        self._sink.item(value)

    def end(self) -> None:
        self.history.moved("success")
        self._release()
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        attempt = self.attempt
        assert attempt
        self._release()
        if not error.migratable or self._context.is_stopped():
            self._give_up(error, "cancelled" if self._context.is_stopped() else "failure")
            return
        instance_id = attempt.placement.instance_id
        self._instances.inhibit(instance_id)
        if self._finished or (self._migrations_left and is_complete(self._request, self._generated)):
            # The worker died between its last token and the end of the stream.
            self._sink.end()
            return
        self._excluded.add(instance_id)
        leaving = isinstance(error, EngineShutdown)
        if not leaving:
            self._broken.add(instance_id)
        # A worker that refused the request has done nothing: trying the next one is not a migration.
        refused = leaving and attempt.silent and self._pinned is None
        if not refused:
            if self._migrations_left == 0:
                self._give_up(error, "failure")
                return
            self._migrations_left -= 1
            self.history.moving()
            log.warning(
                "request %s: instance %x failed after %d tokens (%s), moving it to another",
                self._context.id(),
                instance_id,
                len(self._generated),
                error,
            )
        self._retry = asyncio.create_task(self._start_again(error))

    async def _start_again(self, error: DynamoException) -> None:
        retry = asyncio.current_task()
        assert retry
        unsubscribe = self._context.on_stop(lambda _: _cancel(retry))
        try:
            await self.start()
        except asyncio.CancelledError:
            if not self._closed:
                self._give_up(Cancelled("request was cancelled"), "cancelled")
            raise
        except DynamoException as next_error:
            log.warning("request %s: no instance left to move it to: %s", self._context.id(), next_error)
            self._give_up(next_error if self.history.first_output_time is None else error, "failure")
        except Exception:
            log.exception("request %s cannot be moved", self._context.id())
            self._give_up(error, "failure")
        finally:
            unsubscribe()

    def _first_output(self, attempt: Attempt) -> None:
        attempt.silent = False
        if not self._can_continue:
            self._migrations_left = 0
        self.history.first_output()

    def _prompt_computed(self) -> None:
        assert self.attempt
        self._prompt_waits = False
        self._first_output(self.attempt)
        self.history.moved("success")
        self.attempt.placement.first_token()

    def _give_up(self, error: DynamoException, outcome: str) -> None:
        self.history.moved(outcome)
        self._sink.fail(error)

    def _release(self) -> None:
        self._prompt_waits = False
        if self.attempt:
            self.attempt.placement.release()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
