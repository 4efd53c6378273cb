"""A request's way to a worker, and to the next one when that dies: the client never notices.

The new worker gets the prompt and all that was generated so far, so it goes on where the old one stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from time import perf_counter
from typing import Any

from msgspec import Struct, structs

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Usage
from dynamo.protocols.errors import CannotConnect, DynamoException, EngineShutdown
from dynamo.router import Placement, Router
from dynamo.router.router import on_rank
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
"""Before a request goes back to where it broke; twice as long each time, up to the longest."""
LONGEST_PAUSE_SECONDS = 2.0


class Move(Struct, frozen=True):
    """One change of workers, from the failure of the old one to what came of it."""

    kind: str
    """`new_request` where nothing was generated yet, else `ongoing_request`."""
    outcome: str
    """`success` (the new worker said something), `failure` or `cancelled`."""
    seconds: float


class Migration:
    """Stands between the streams of one request and the sink that reads them as one."""

    def __init__(
        self,
        router: Router,
        request: Any,
        context: Context,
        sink: Sink,
        *,
        limit: int = 0,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self.placement: Placement | None = None
        """Where it is, or was last; it holds the reasons for the choice."""
        self.migrations = 0
        self.restarts = 0
        """Those of the migrations that happened before anything was generated."""
        self.moves: tuple[Move, ...] = ()
        """The migrations that are over."""
        self.placed_at = 0.0
        """When it got its first place, on the clock of `perf_counter`."""
        self.first_output_time: float | None = None
        self._router = router
        self._request = request
        self._context = context
        self._sink = sink
        self._pinned = pinned_instance(request)
        self._left = limit if self._pinned is None else 0  # a pinned one has nowhere else to go
        self._can_go_on = can_go_on(request)
        self._generated: list[int] = []
        self._avoided: set[int] = set()
        self._broke: set[int] = set()
        """Those of the avoided that may be asked again: they neither left nor are out of reach."""
        self._pause = pause
        self._retry: asyncio.Task[None] | None = None
        self._uncomputed: Placement | None = None
        """Where the prompt waits for its first token."""
        self._silent = True
        """Where it is now, nothing was said yet."""
        self._finished = False
        self._moving: tuple[str, float] | None = None

    @property
    def instance_id(self) -> int | None:
        return self.placement.instance_id if self.placement else None

    async def start(self) -> None:
        """Send the request; raises when there is nobody to send it to."""
        request = self._continuation()
        while True:
            try:
                placement = await self._router.open(
                    request, request_id=self._context.id(), pinned=self._pinned, avoid=self._avoided
                )
            except DynamoException:
                if not self._broke:
                    raise
                await self._begin_another_round()
                continue
            self.placed_at = self.placed_at or perf_counter()
            self.placement = self._uncomputed = placement
            self._silent = True
            try:
                self._send(request, placement)
                return
            except CannotConnect:
                # Nothing was sent, so trying the next one is not a migration.
                self._release()
                if self._pinned is not None:
                    raise
                self._router.instances.inhibit(placement.instance_id)
                self._avoided.add(placement.instance_id)

    async def _begin_another_round(self) -> None:
        """Nobody else takes it: those where it broke once more, but not in a hurry."""
        self._avoided -= self._broke
        self._broke.clear()
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _send(self, request: Any, placement: Placement) -> None:
        tokens = isinstance(request, PreprocessedRequest)
        if tokens and placement.dp_rank is not None:
            request = on_rank(request, placement.dp_rank)
        placement.channel.send(request, self._context, self, item_type=EngineOutput if tokens else Any, columnar=tokens)

    async def close(self) -> None:
        """Whatever happens, no attempt is left behind."""
        if self._retry:
            self._retry.cancel()
            await asyncio.gather(self._retry, return_exceptions=True)
            self._moved("cancelled")
        self._release()

    def _release(self) -> None:
        self._uncomputed = None
        if self.placement:
            self.placement.release()

    def _heard(self) -> None:
        self._silent = False
        if not self._can_go_on:
            self._left = 0
        if self.first_output_time is None:
            self.first_output_time = time.time()

    def _computed(self, placement: Placement) -> None:
        self._heard()
        self._uncomputed = None
        if self._moving:
            self._moved("success")
        placement.first_token()

    def _moved(self, outcome: str) -> None:
        """What came of the move that is under way, if any is."""
        if self._moving:
            kind, began = self._moving
            self._moving = None
            self.moves += (Move(kind, outcome, perf_counter() - began),)

    def tokens(self, ids: list[int]) -> None:
        if self._uncomputed is not None:
            self._computed(self._uncomputed)
        if self._left:
            self._generated += ids
        self._sink.tokens(ids)

    def item(self, value: Any) -> None:
        if self._silent:
            self._heard()
        if self._uncomputed is not None and (not isinstance(value, EngineOutput) or value.token_ids or value.text):
            self._computed(self._uncomputed)
        if isinstance(value, EngineOutput):
            if value.text and not value.token_ids:
                # Nobody can go on from text: its ids are not known.
                self._left = 0
            if self._left:
                self._generated += value.token_ids
            if value.finish_reason is not None:
                self._finished = True
            if self.migrations and value.completion_usage:
                count_prompt(value.completion_usage, len(self._request.token_ids))
        self._sink.item(value)

    def end(self) -> None:
        if self._moving:
            self._moved("success")
        self._release()
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        self._release()
        if not error.migratable or self._context.is_stopped():
            self._moved("cancelled" if self._context.is_stopped() else "failure")
            self._sink.fail(error)
            return
        assert self.instance_id is not None
        self._router.instances.inhibit(self.instance_id)
        if self._finished or (self._left and self._said_all()):
            # It died between its last token and the end of the stream.
            self._sink.end()
            return
        self._avoided.add(self.instance_id)
        if not isinstance(error, EngineShutdown):
            self._broke.add(self.instance_id)
        refused = isinstance(error, EngineShutdown) and self._silent and self._pinned is None
        if not refused and self._left == 0:
            self._moved("failure")
            self._sink.fail(error)
            return
        if not refused:
            # A worker that refused has done nothing: trying the next one is not a migration.
            self._left -= 1
            self.migrations += 1
            self.restarts += self.first_output_time is None
            self._moved("failure")
            self._moving = ("new_request" if self.first_output_time is None else "ongoing_request", perf_counter())
            log.warning(
                "request %s: instance %x failed after %d tokens (%s), moving it to another",
                self._context.id(),
                self.instance_id,
                len(self._generated),
                error,
            )
        self._retry = asyncio.create_task(self._again(error))

    def _said_all(self) -> bool:
        said = len(self._generated)
        if not said:
            return False
        conditions = self._request.stop_conditions
        if conditions.max_tokens is not None and said >= conditions.max_tokens:
            return True
        ends = (conditions.stop_token_ids or []) + (conditions.stop_token_ids_hidden or [])
        return self._generated[-1] in ends and said >= (conditions.min_tokens or 0)

    async def _again(self, error: DynamoException) -> None:
        try:
            await self.start()
        except DynamoException as next_error:
            log.warning("request %s: nowhere left to move it: %s", self._context.id(), next_error)
            self._moved("failure")
            self._sink.fail(next_error if self.first_output_time is None else error)
        except Exception:
            log.exception("request %s cannot be moved", self._context.id())
            self._moved("failure")
            self._sink.fail(error)

    def _continuation(self) -> Any:
        return continuation(self._request, self._generated) if self._generated else self._request


def continuation(request: PreprocessedRequest, generated: list[int]) -> PreprocessedRequest:
    """The request that goes on after `generated`: the limits shrink by what was already delivered."""
    conditions = request.stop_conditions
    return structs.replace(
        request,
        token_ids=[*request.token_ids, *generated],
        stop_conditions=structs.replace(
            conditions,
            max_tokens=_rest(conditions.max_tokens, generated),
            min_tokens=_rest(conditions.min_tokens, generated),
        ),
    )


def count_prompt(usage: Usage, tokens: int) -> None:
    """The last worker took for prompt what its predecessors had generated."""
    usage.prompt_tokens = tokens
    details = usage.prompt_tokens_details or {}
    cached = details.get("cached_tokens")
    if isinstance(cached, int):
        usage.prompt_tokens_details = {**details, "cached_tokens": min(cached, tokens)}


def _rest(limit: int | None, generated: list[int]) -> int | None:
    return None if limit is None else max(0, limit - len(generated))


def can_go_on(request: Any) -> bool:
    """Whether another worker can take over in the middle: it needs all ids, and lacks guided decoding's state."""
    return isinstance(request, PreprocessedRequest) and request.sampling_options.guided_decoding is None


def pinned_instance(request: Any) -> int | None:
    if isinstance(request, PreprocessedRequest):
        return request.routing.backend_instance_id if request.routing else None
    if isinstance(request, dict):
        nvext = request.get("nvext")
        return nvext.get("backend_instance_id") if isinstance(nvext, dict) else None
    return None
