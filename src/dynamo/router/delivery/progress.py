"""How far a request is and where it goes when its stream breaks: a state machine without I/O, clock or tasks.

Inputs are methods; the delivery, its driver, connects, sends and waits as they say.
"""

from __future__ import annotations

import enum
from typing import Any

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import DynamoException, EngineShutdown, ResourceExhausted, Unavailable, WorkerBusy
from dynamo.router.delivery.continuation import continuation, is_complete, is_guided, repeatable


class DeliveryState(enum.Enum):
    Placing = "placing"
    """An instance is sought, or waited for."""
    Sent = "sent"
    """A worker was chosen and has produced nothing. Another one may compute the prompt for it first."""
    Answering = "answering"
    """The worker has produced something, but not what shows that it has computed the prompt."""
    Generating = "generating"
    """It has computed the prompt."""
    Finished = "finished"
    """It has produced the last of the answer; only the end of the stream is missing."""
    Over = "over"


class Next(enum.Enum):
    """What follows when a stream has broken."""

    End = "end"
    """The answer is complete: the worker died between its last token and the end of the stream."""
    Retry = "retry"
    """The worker rejected the request and has done nothing: trying the next one is no migration."""
    Move = "move"
    """Another worker continues it."""
    Fail = "fail"
    TooLong = "too long"
    """It fails, because it is too long to move."""


class DeliveryProgress:
    """One request on its way. It may move `limit` times, unless it is `pinned` to its instance."""

    __slots__ = (
        "_leaving", "_limit", "_max_seq_len", "_met_busy", "continues", "excluded", "generated", "migrations_left",
        "pinned", "request", "state",
    )  # fmt: skip

    def __init__(
        self, request: Any, *, limit: int = 0, max_seq_len: int | None = None, pinned: bool = False,
        resumes_guided: bool = False,
    ) -> None:  # fmt: skip
        self.state = DeliveryState.Placing
        self.pinned = pinned
        self.migrations_left = self._limit = 0 if pinned else limit
        self.generated: list[int] | None = [] if self._limit else None
        """The tokens to continue after; None if the request cannot be continued."""
        self.continues = False
        """The current worker was sent a continuation."""
        self.excluded: set[int] = set()
        """Instances that failed since the last pause, and those that are leaving."""
        self._leaving: set[int] = set()
        self._met_busy = False
        """A worker rejected the request because it is at its own limit."""
        self._max_seq_len = max_seq_len
        if self._limit and is_guided(request) and not resumes_guided:
            request = repeatable(request)
        self.request = request

    def next_request(self, *, resumes_guided: bool) -> Any:
        """What the next worker is sent: the request, or its continuation."""
        generated = self.generated
        self.continues = bool(generated) and (resumes_guided or not is_guided(self.request))
        return continuation(self.request, generated) if generated and self.continues else self.request

    def sent(self) -> None:
        self.state = DeliveryState.Sent

    def unsent(self, instance_id: int) -> None:
        """The connection to this instance was lost before the request was sent."""
        self.excluded.add(instance_id)
        self.state = DeliveryState.Placing

    def answering(self) -> bool:
        """The worker has produced something that does not show whether the prompt is computed: is it the first?"""
        if self.state is not DeliveryState.Sent:
            return False
        self.state = DeliveryState.Answering
        return True

    def generating(self) -> bool:
        """The worker has produced something that shows that the prompt is computed: is it the first?"""
        if not self.prompt_pending:
            return False
        self.state = DeliveryState.Generating
        if not isinstance(self.request, PreprocessedRequest):
            self.generated = None  # The next output is text, which is of no use to another worker.
        return True

    def output(self, value: Any) -> None:
        """What the worker has produced is passed on, and is more than bare tokens."""
        if not isinstance(value, EngineOutput):
            return
        if value.text and not value.token_ids:
            self.generated = None  # Text without token ids cannot be continued by another worker.
        if self.generated is not None:
            self.generated += value.token_ids
        if value.finish_reason is not None:
            self.state = DeliveryState.Finished

    def broken(self, error: DynamoException, instance_id: int, *, free: bool = False) -> Next:
        """The stream from this instance broke: decide what follows. A `free` move does not count."""
        follows = self._after(error) if error.migratable else Next.Fail
        if follows is Next.Move and not free:
            self.migrations_left -= 1
        self._met_busy |= isinstance(error, WorkerBusy)
        self.excluded.add(instance_id)
        if isinstance(error, EngineShutdown):
            self._leaving.add(instance_id)
        self.state = DeliveryState.Placing if follows in (Next.Retry, Next.Move) else DeliveryState.Over
        return follows

    def _after(self, error: DynamoException) -> Next:
        if self.complete:
            return Next.End
        silent = self.state is DeliveryState.Sent
        if silent and isinstance(error, EngineShutdown | WorkerBusy) and not self.pinned:
            return Next.Retry
        if not self.migrations_left or self.generated is None:
            return Next.Fail
        return Next.Move if self.may_move else Next.TooLong

    @property
    def complete(self) -> bool:
        """The whole answer has come, if not the end of its stream."""
        ended = self.generated and is_complete(self.request, self.generated)
        return self.state is DeliveryState.Finished or bool(ended)

    @property
    def prompt_pending(self) -> bool:
        """Whether the worker may still be computing the prompt."""
        return self.state is DeliveryState.Sent or self.state is DeliveryState.Answering

    @property
    def may_move(self) -> bool:
        """Whether another worker would continue it now."""
        if not self.migrations_left or self.generated is None:
            return False
        if self._max_seq_len is None or not isinstance(self.request, PreprocessedRequest):
            return True
        return len(self.request.token_ids) + len(self.generated) <= self._max_seq_len

    def waits(self, error: DynamoException) -> bool:
        """No instance takes the request, for this reason: whether to wait, and then to try all but those that leave."""
        waitable = error.migratable or isinstance(error, Unavailable | ResourceExhausted)
        # A new request is rejected when all workers are busy; one that has begun is worth waiting for.
        busy = self._met_busy or isinstance(error, ResourceExhausted)
        if self.generated is None or not waitable or (busy and self.migrations_left == self._limit):
            return False
        self.excluded = set(self._leaving)
        return True

    def stay(self) -> None:
        """From now on no other worker may have it."""
        self.pinned = True
        self.generated = None

    def over(self) -> None:
        self.state = DeliveryState.Over
