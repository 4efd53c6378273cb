"""Every order of losses that a small deployment can see, all of them: no token twice, none lost, none computed again.

One answer of three tokens. Its worker may die or leave, its frontend may die and the client come back to another, the
client may leave. The states are those of the real delivery and of the real kept streams; the search follows each event
from each state that it has not seen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, StopConditions
from dynamo.protocols.errors import Disconnected, DynamoException, EngineShutdown
from dynamo.protocols.streams import StreamClaim
from dynamo.router.delivery.progress import DeliveryProgress, DeliveryState, Next
from dynamo.runtime.context import Context
from dynamo.runtime.plane.kept import KeepLimits, KeptStream, KeptStreams

PROMPT = [1, 2]
ANSWER = [11, 12, 13]
ASKED = PreprocessedRequest(token_ids=PROMPT, stop_conditions=StopConditions(max_tokens=len(ANSWER)))
LOSSES = {"the worker dies": Disconnected("gone"), "the worker leaves": EngineShutdown("leaving")}
MOST_LOSSES = 3
MOST_RETURNS = 2


class Reader:
    """A frontend's part of a stream: what `Delivery` does with it, and the client behind it."""

    columnar = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._passed = 0
        self.progress = DeliveryProgress(ASKED, limit=world.limit)

    def tokens(self, ids: list[int]) -> None:
        self.progress.generating()
        assert self.progress.generated is not None
        self.progress.generated += ids
        for id in ids:
            self._passed += 1
            # A frontend that continues leaves out what the client has.
            if self._passed > len(self._world.got):
                self._world.got.append(id)

    def item(self, value: Any) -> None:
        self.progress.output(value)

    def end(self) -> None:
        if self._world.reader is self:
            self._world.outcome = "whole"

    def fail(self, error: DynamoException) -> None: ...

    async def writable(self) -> None: ...


class World:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.got: list[int] = []
        self.computed: Counter[int] = Counter()
        self.outcome = ""
        self.reader: Reader | None = Reader(self)
        self.losses = 0
        self.returns = 0
        self._kept: KeptStreams | None = None
        """The worker's; None while there is none."""
        self._stream: KeptStream | None = None
        self._context = Context()
        self._next = 0

    def events(self) -> Iterator[str]:
        if self.outcome:
            return
        if self.reader is None:
            yield "the client comes back"
        elif self.reader.progress.state is DeliveryState.Placing:
            yield "it is sent"
        else:
            yield "the client leaves"
        if self.reader is not None and self.returns < MOST_RETURNS:
            yield "the frontend dies"
        if self._stream is not None and not self._stream.over:
            yield "a token" if self._next < len(ANSWER) else "the end"
        if self._stream is not None and self.losses < MOST_LOSSES:
            yield from LOSSES

    def happen(self, event: str) -> None:
        match event:
            case "it is sent":
                assert self.reader
                self._begin(self.reader)
            case "a token":
                assert self._stream
                self.computed[self._next] += 1
                self._next += 1
                self._stream.tokens([ANSWER[self._next - 1]])
            case "the end":
                assert self._stream
                self._stream.item(EngineOutput(finish_reason="length"))
                self._stream.end()
            case "the frontend dies":
                self.reader = None
                self.returns += 1
                self._context.lose_caller()
            case "the client comes back":
                self.reader = Reader(self)
                if self._kept is not None:
                    self._attach(self.reader, self._kept)
            case "the client leaves":
                self.outcome = "left"
                self._context.kill()
            case _:
                self._lose(LOSSES[event])

    def _begin(self, reader: Reader) -> None:
        request = reader.progress.next_request(resumes_guided=False)
        assert list(request.token_ids) == PROMPT + (reader.progress.generated or [])
        assert request.stop_conditions.max_tokens == len(ANSWER) - request.resumed_tokens
        reader.progress.sent()
        self._context = Context()
        self._kept = KeptStreams(KeepLimits(seconds=3600))
        self._stream = self._kept.begin(StreamClaim("id", "owner"), request, self._context, reader, lambda *_: None)
        self._next = request.resumed_tokens

    def _attach(self, reader: Reader, kept: KeptStreams) -> None:
        reader.progress.sent()
        self._context = Context()
        kept.attach(StreamClaim("id", "owner", "attach"), self._context, reader)

    def _lose(self, error: DynamoException) -> None:
        self.losses += 1
        assert self._kept
        self._kept.close()
        self._kept = self._stream = None
        if self.reader is None:
            return
        match self.reader.progress.broken(error, 7):
            case Next.End:
                self.outcome = "whole"
            case Next.Fail | Next.TooLong:
                self.outcome = "failed"

    def check(self) -> None:
        assert self.got == ANSWER[: len(self.got)], "each token once and in order"
        assert self.outcome != "whole" or self.got == ANSWER
        if not self.losses:
            assert all(count == 1 for count in self.computed.values()), "no worker was lost: nothing is computed twice"
        assert all(count <= 1 + self.losses for count in self.computed.values())
        assert self.outcome != "failed" or self.losses > self.limit
        if self.outcome == "left" and self._stream is not None and not self._stream.over:
            assert self._stream.context.is_killed()
            assert self._kept is not None
            assert not len(self._kept)

    @property
    def state(self) -> tuple[object, ...]:
        progress = self.reader.progress if self.reader else None
        known = (progress.state, len(progress.generated or ()), progress.migrations_left) if progress else ()
        stream = (self._stream.over, len(self._stream.resumed)) if self._stream else ()
        return known, stream, self._next, len(self.got), self.outcome, self.losses, self.returns, *self.computed.items()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()


@pytest.mark.parametrize("limit", [1, 3])
async def test_every_order_of_losses_leaves_the_answer_whole(limit: int) -> None:
    seen: set[tuple[object, ...]] = set()
    outcomes: Counter[str] = Counter()
    paths: deque[tuple[str, ...]] = deque([()])
    while paths:
        path = paths.popleft()
        world = World(limit)
        for event in path:
            world.happen(event)
        try:
            world.check()
        except AssertionError as error:
            raise AssertionError(f"after {', '.join(path)}: {error}") from error
        if world.state not in seen:
            seen.add(world.state)
            outcomes[world.outcome] += 1
            paths.extend((*path, event) for event in world.events())
        world.close()
    assert set(outcomes) == ({"", "whole", "left"} if limit == MOST_LOSSES else {"", "whole", "left", "failed"})
    assert len(seen) > 500, "the search has gone through the states"
