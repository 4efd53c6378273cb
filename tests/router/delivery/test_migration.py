"""A request that moves: the reader sees one stream, and the new worker goes on where the old one stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.model import Tokenizer
from dynamo.pipeline.choice import Finish
from dynamo.pipeline.postprocess import Postprocess
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing, SamplingOptions, StopConditions, Usage
from dynamo.protocols.errors import (
    CannotConnect,
    Disconnected,
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
    WorkerBusy,
)
from dynamo.router import Decision, Placement
from dynamo.router.config import RequestBackoff
from dynamo.router.delivery.continuation import continuation
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions
from dynamo.router.delivery.repetition import Repetition
from dynamo.router.placement import pinned_instance
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import CancelStream, nothing_to_cancel
from dynamo.runtime.stream import Sink
from support import models
from support.waiting import PATIENCE

VOCABULARY = 450
"""Token ids of `models.byte_level_json`."""
ANY_DECISION = Decision(
    request_id="", time=0.0, mode="round-robin", worker_id=0, dp_rank=None, pinned=False, considered=1
)


def answer_to(prompt: Sequence[int], length: int, ends: Collection[int] = ()) -> list[int]:
    """What any of the scripted workers says: each token follows from all before it, as with a real model."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + length:
        tokens.append((sum(tokens) * 31 + len(tokens)) % VOCABULARY)
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


Fate = tuple[type[DynamoException], int] | None
"""What happens to a request at a worker: an error after this number of tokens; None answers it to the end."""


def breaks(after: int) -> Fate:
    return Disconnected, after


def leaves(after: int) -> Fate:
    return EngineShutdown, after


REFUSES = leaves(0)
UNREACHABLE: Fate = (CannotConnect, 0)
"""Gone before anything is sent."""


class Scripted:
    """A worker with a fate for each time it is asked; the last one is for all times that follow."""

    def __init__(self, router: ScriptedRouter, fates: list[Fate]) -> None:
        self.ready = True
        self.draining = self.unheard = self.announced_end = False
        self._router = router
        self._fates = fates

    async def open(self) -> None: ...

    def send(
        self,
        request: PreprocessedRequest,
        context: Context,
        sink: Sink,
        *,
        item_type: Any = Any,
        columnar: bool = False,
    ) -> CancelStream:
        error, after = (self._fates.pop(0) if len(self._fates) > 1 else self._fates[0]) or (None, 0)
        if error is CannotConnect:
            raise CannotConnect("gone")
        self._router.requests.append(request)
        limit = request.stop_conditions.max_tokens or 0
        ends = request.stop_conditions.stop_token_ids_hidden or ()
        tokens = answer_to(request.token_ids, limit, ends)
        if error and after <= len(tokens):
            for token in tokens[:after]:
                sink.tokens([token])
            if error is EngineShutdown:
                self._router.gone.append(self)
            if after < len(tokens) and (after or error is not EngineShutdown):
                self._router.broken += 1
            sink.fail(error("gone"))
            return nothing_to_cancel
        for token in tokens[:-1]:
            sink.tokens([token])
        usage = Usage(prompt_tokens=len(request.token_ids), completion_tokens=len(tokens))
        reason = "eos" if tokens[-1] in ends else "length"
        sink.item(EngineOutput(token_ids=tokens[-1:], finish_reason=reason, completion_usage=usage))
        sink.end()
        return nothing_to_cancel


class ScriptedPlacement(Placement):
    """Remembers what it was told."""

    def __init__(self, instance_id: int, channel: Scripted) -> None:
        self.told: list[str] = []
        super().__init__(Remembering(self.told), instance_id, channel, ANY_DECISION)


class Remembering:
    def __init__(self, told: list[str]) -> None:
        self._told = told

    def connected(self, placement: Placement) -> None: ...

    def prompt_computed(self, placement: Placement) -> None:
        self._told.append("first token")

    def released(self, placement: Placement) -> None:
        self._told.append("released")


class ScriptedRouter:
    """Hands out the workers in order and remembers what it was told of them."""

    def __init__(self, *fates: Fate | list[Fate]) -> None:
        self.requests: list[PreprocessedRequest] = []
        self.gone: list[Scripted] = []
        """Those that said they leave, each time they did."""
        self.broken = 0
        """Answers that were begun and not said to their end."""
        self.inhibited: list[int] = []
        self.placements: list[ScriptedPlacement] = []
        self.instances = self
        self.workers = {
            id: Scripted(self, list(fate) if isinstance(fate, list) else [fate]) for id, fate in enumerate(fates)
        }
        """Those that are registered."""
        self.nobody_left = asyncio.Event()
        self.nobody_joins = asyncio.Event()
        self.pauses: list[float] = []

    @property
    def asked(self) -> list[int]:
        return [placement.instance_id for placement in self.placements]

    def inhibit(self, instance_id: int) -> None:
        self.inhibited.append(instance_id)

    def request_sent(self, instance_id: int) -> None: ...

    def request_answered(self, instance_id: int) -> None: ...

    def request_failed(self, instance_id: int) -> None: ...

    def mark_unreachable(self, instance_id: int, error: DynamoException) -> None:
        self.inhibit(instance_id)

    def none_reachable(self, last: DynamoException | None = None) -> Unavailable:
        return Unavailable(f"nobody can be reached: {last}")

    reach = InstanceSet.reach

    async def joined(self, *, within: float) -> None:
        self.pauses.append(within)
        await asyncio.wait_for(self.nobody_joins.wait(), within) if within > 60 else await asyncio.sleep(0)

    async def place(
        self, request: Any, *, request_id: str = "", pinned: int | None = None, avoid: Collection[int] = ()
    ) -> ScriptedPlacement:
        left = [id for id in self.workers if id not in avoid]
        if not left:
            self.nobody_left.set()
            raise Unavailable("nobody left")
        placement = ScriptedPlacement(left[0], self.workers[left[0]])
        self.placements.append(placement)
        return placement


class Reader:
    def __init__(self) -> None:
        self.tokens_seen: list[int] = []
        self.items: list[Any] = []
        self.usage: Usage | None = None
        self.error: DynamoException | None = None
        self.done = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        self.tokens_seen += ids

    def item(self, value: Any) -> None:
        self.items.append(value)
        if isinstance(value, EngineOutput):
            self.tokens_seen += value.token_ids
            self.usage = value.completion_usage

    def end(self) -> None:
        self.done.set()

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.done.set()


PAUSES = 3
"""How often a scripted request waits for an instance before it gives up."""


def three_pauses() -> RequestBackoff:
    ticks = count()
    return RequestBackoff(PAUSES, clock=lambda: float(next(ticks)))


def delivering(
    router: ScriptedRouter, request: Any, context: Context, sink: Any, *, limit: int, **options: Any
) -> Delivery:
    instances: Any = router.instances
    options = {"pinned": pinned_instance(request), "backoff": three_pauses, **options}
    return Delivery(router.place, instances, request, context, sink, DeliveryOptions(limit=limit, **options))


async def run(
    router: ScriptedRouter, request: PreprocessedRequest, limit: int, context: Context | None = None, **options: Any
) -> tuple[Reader, Delivery]:
    reader = Reader()
    delivery = delivering(router, request, context or Context(), reader, limit=limit, **options)
    await delivery.start()
    async with asyncio.timeout(PATIENCE):
        await reader.done.wait()
    await delivery.close()
    return reader, delivery


def asking(prompt: list[int], length: int, **fields: Any) -> PreprocessedRequest:
    return PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=length), **fields)


class Client:
    """What somebody who asked is told in the end."""

    def __init__(self) -> None:
        self.said = ""
        self.finished: Finish | None = None
        self.error: DynamoException | None = None
        self.done = asyncio.Event()

    def escaped(self, text: str) -> None:
        self.text(json.loads(f'"{text}"'))

    def text(self, text: str) -> None:
        self.said += text

    def finish(self, finish: Finish) -> None:
        self.finished = finish
        self.done.set()

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.done.set()


async def told(
    router: ScriptedRouter, request: PreprocessedRequest, limit: int = 0, **options: Any
) -> tuple[Client, Delivery]:
    client, context = Client(), Context()
    decoder = Tokenizer(models.byte_level_json()).decoder([], skip_special_tokens=True)
    sink = Postprocess(request, decoder, client, stop_worker=context.stop_generating)  # type: ignore[arg-type]
    delivery = delivering(router, request, context, sink, limit=limit, **options)
    await delivery.start()
    async with asyncio.timeout(PATIENCE):
        await client.done.wait()
    await delivery.close()
    return client, delivery


GREEDY_GUIDED = SamplingOptions(temperature=0, guided_decoding={"json": {}})


any_fate = st.one_of(
    st.none(), st.builds(breaks, st.integers(0, 12)), st.builds(leaves, st.integers(0, 12)), st.just(UNREACHABLE)
)


@given(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8),
    st.builds(
        StopConditions,
        max_tokens=st.integers(1, 30),
        stop=st.none() | st.lists(st.text("aeinrst ", min_size=1, max_size=2), min_size=1, max_size=2),
        stop_token_ids_hidden=st.none() | st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    ),
    st.lists(st.lists(any_fate, min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 8),
    st.sampled_from([SamplingOptions(), GREEDY_GUIDED, SamplingOptions(guided_decoding={"json": {}})]),
    st.booleans(),
)
def test_whatever_happens_to_workers_nothing_is_lost_and_nothing_said_twice(
    prompt: list[int],
    conditions: StopConditions,
    fleet: list[list[Fate]],
    limit: int,
    sampling: SamplingOptions,
    resumes: bool,
) -> None:
    request = PreprocessedRequest(token_ids=prompt, stop_conditions=conditions, sampling_options=sampling)

    async def check() -> None:
        unbroken, _ = await told(ScriptedRouter(None), request)
        router = ScriptedRouter(*fleet)
        try:
            client, delivery = await told(router, request, limit, resumes_guided=lambda can=resumes: can)
        except Unavailable:
            assert limit == 0 or len(router.pauses) == PAUSES
            return
        assert len(router.gone) == len(set(router.gone))
        for placement in router.placements:
            assert placement.told in (["first token", "released"], ["released"])
        if client.error:
            assert unbroken.said.startswith(client.said)
            assert router.broken > limit or limit == 0 or len(router.pauses) >= PAUSES
        else:
            assert client.said == unbroken.said
            assert client.finished == unbroken.finished
        assert delivery.history.migrations <= min(limit, router.broken)

    asyncio.run(check())


@given(st.integers(0, 50), st.integers(0, 50), st.lists(st.integers(0, 9), max_size=60))
def test_a_continuation_asks_for_exactly_the_rest(max_tokens: int, min_tokens: int, generated: list[int]) -> None:
    request = PreprocessedRequest(
        token_ids=[1, 2], stop_conditions=StopConditions(max_tokens=max_tokens, min_tokens=min_tokens)
    )
    rest = continuation(request, generated)
    assert rest.token_ids == [1, 2, *generated]
    assert rest.resumed_tokens == len(generated)
    assert rest.stop_conditions.max_tokens == max(0, max_tokens - len(generated))
    assert rest.stop_conditions.min_tokens == max(0, min_tokens - len(generated))
    assert request.token_ids == [1, 2]
    assert request.stop_conditions.max_tokens == max_tokens


async def test_the_limit_counts_and_the_first_error_is_told() -> None:
    reader, delivery = await run(ScriptedRouter(*[breaks(1)] * 3, None), asking([1], 9), limit=2)
    assert isinstance(reader.error, Disconnected)
    assert delivery.history.migrations == 2
    assert reader.tokens_seen == answer_to([1], 3)


async def test_without_migration_a_death_is_told_at_once() -> None:
    reader, delivery = await run(ScriptedRouter(breaks(1), None), asking([1], 9), limit=0)
    assert isinstance(reader.error, Disconnected)
    assert delivery.history.migrations == 0


async def test_a_worker_that_refuses_costs_no_migration() -> None:
    router = ScriptedRouter(REFUSES, REFUSES, None)
    reader, delivery = await run(router, asking([1], 3), limit=0)
    assert reader.tokens_seen == answer_to([1], 3)
    assert delivery.history.migrations == 0
    assert delivery.instance_id == 2
    assert router.inhibited == [0, 1]


BUSY: Fate = (WorkerBusy, 0)


async def test_a_worker_that_is_busy_is_passed_over_and_stays_in_rotation() -> None:
    router = ScriptedRouter(BUSY, BUSY, None)
    reader, delivery = await run(router, asking([1], 3), limit=0)
    assert reader.tokens_seen == answer_to([1], 3)
    assert delivery.history.migrations == 0
    assert router.inhibited == []


@pytest.mark.parametrize("limit", [0, 5])
async def test_with_all_workers_busy_a_new_request_is_refused_at_once(limit: int) -> None:
    router = ScriptedRouter(BUSY, BUSY)
    reader, _ = await run(router, asking([1], 3), limit=limit)
    assert isinstance(reader.error, ResourceExhausted)
    assert router.pauses == []


async def test_with_all_workers_busy_a_request_that_has_begun_waits() -> None:
    router = ScriptedRouter([breaks(2), None], [BUSY, BUSY, None])
    router.workers[0]._fates[1] = BUSY
    reader, _ = await run(router, asking([1], 9), limit=1)
    assert reader.tokens_seen == answer_to([1], 9)
    assert router.pauses


async def test_a_worker_that_refuses_during_a_move_costs_none() -> None:
    router = ScriptedRouter(breaks(1), REFUSES, UNREACHABLE, REFUSES, None)
    reader, delivery = await run(router, asking([1], 9), limit=1)
    assert reader.error is None
    assert reader.tokens_seen == answer_to([1], 9)
    assert delivery.history.migrations == 1
    assert [migration.outcome for migration in delivery.history.finished_migrations] == ["success"]


async def test_a_worker_that_leaves_after_a_word_has_not_refused() -> None:
    reader, delivery = await run(ScriptedRouter(breaks(1), leaves(1), None), asking([1], 9), limit=1)
    assert isinstance(reader.error, EngineShutdown)
    assert reader.tokens_seen == answer_to([1], 2)
    assert delivery.history.migrations == 1


async def test_a_request_that_was_not_sent_costs_no_migration() -> None:
    router = ScriptedRouter(UNREACHABLE, UNREACHABLE, None)
    reader, delivery = await run(router, asking([1], 3), limit=0)
    assert reader.tokens_seen == answer_to([1], 3)
    assert delivery.history.migrations == 0
    assert router.inhibited == [0, 1]
    assert [placement.told for placement in router.placements[:2]] == [["released"]] * 2


async def test_with_nobody_left_who_took_it_a_request_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await run(ScriptedRouter(UNREACHABLE, UNREACHABLE), asking([1], 3), limit=0)
    for fates in ([REFUSES, UNREACHABLE], [UNREACHABLE, REFUSES]):
        reader, _ = await run(ScriptedRouter(*fates), asking([1], 3), limit=0)
        assert isinstance(reader.error, Unavailable)


async def test_a_pinned_request_that_was_not_sent_says_so() -> None:
    pinned = asking([1], 9, routing=Routing(backend_instance_id=0))
    router = ScriptedRouter(UNREACHABLE, None)
    with pytest.raises(CannotConnect):
        await run(router, pinned, limit=3)
    assert [placement.told for placement in router.placements] == [["released"]]


async def test_with_nobody_else_there_it_goes_back_to_where_it_broke() -> None:
    router = ScriptedRouter([breaks(2), None])
    reader, delivery = await run(router, asking([1], 9), limit=3)
    assert reader.error is None
    assert reader.tokens_seen == answer_to([1], 9)
    assert delivery.history.migrations == 1
    assert router.asked == [0, 0]


async def test_with_all_others_busy_it_goes_back_to_where_it_broke() -> None:
    class Busy(ScriptedRouter):
        async def place(self, *args: Any, avoid: Collection[int] = (), **kwargs: Any) -> ScriptedPlacement:
            if avoid:
                raise ResourceExhausted("all workers are busy")
            return await super().place(*args, avoid=avoid, **kwargs)

    router = Busy([breaks(2), None])
    reader, _ = await run(router, asking([1], 9), limit=1)
    assert reader.tokens_seen == answer_to([1], 9)
    assert router.asked == [0, 0]


async def test_it_goes_back_only_once_it_broke_everywhere() -> None:
    router = ScriptedRouter(breaks(1), breaks(1))
    reader, delivery = await run(router, asking([1], 9), limit=5)
    assert isinstance(reader.error, Disconnected)
    assert reader.tokens_seen == answer_to([1], 6)
    assert delivery.history.migrations == 5
    assert router.asked == [0, 1] * 3


async def test_it_does_not_go_back_to_a_worker_that_left() -> None:
    for last in (REFUSES, leaves(1)):
        router = ScriptedRouter([breaks(2), last])
        reader, _ = await run(router, asking([1], 9), limit=5)
        assert isinstance(reader.error, Disconnected | EngineShutdown)
        assert router.asked == [0, 0]


async def test_a_request_that_may_move_waits_for_workers_that_cannot_be_reached() -> None:
    for first, migrations in ((breaks(2), 1), (UNREACHABLE, 0)):
        router = ScriptedRouter([first, UNREACHABLE, UNREACHABLE, None])
        reader, delivery = await run(router, asking([1], 9), limit=1)
        assert reader.error is None
        assert reader.tokens_seen == answer_to([1], 9)
        assert delivery.history.migrations == migrations


async def test_a_request_that_may_move_waits_for_a_worker_to_join() -> None:
    class Replaced(ScriptedRouter):
        async def joined(self, *, within: float) -> None:
            self.workers = {7: Scripted(self, [None])}

    router = Replaced(leaves(2))
    reader, delivery = await run(router, asking([1], 9), limit=1)
    assert reader.tokens_seen == answer_to([1], 9)
    assert delivery.instance_id == 7


async def test_the_waits_of_a_request_end_with_its_back_off() -> None:
    router = ScriptedRouter([breaks(2), UNREACHABLE])
    reader, _ = await run(router, asking([1], 9), limit=5)
    assert isinstance(reader.error, Disconnected)
    assert len(router.pauses) == PAUSES
    assert router.asked == [0] * (PAUSES + 1)


async def test_a_sequence_longer_than_the_limit_does_not_move() -> None:
    for longest, moved in ((5, True), (4, False)):
        router = ScriptedRouter(breaks(2), None)
        reader = Reader()
        delivery = delivering(router, asking([1, 2, 3], 9), Context(), reader, limit=5, max_seq_len=longest)
        await delivery.start()
        async with asyncio.timeout(PATIENCE):
            await reader.done.wait()
        await delivery.close()
        assert (reader.error is None) == moved


async def test_when_nobody_is_left_the_original_error_is_told() -> None:
    class Forgetting(ScriptedRouter):
        def inhibit(self, instance_id: int) -> None:
            del self.workers[instance_id]

    router = Forgetting(breaks(2))
    reader, _ = await run(router, asking([1], 9), limit=5)
    assert isinstance(reader.error, Disconnected)
    assert router.asked == [0]


async def test_a_client_that_leaves_before_it_goes_back_is_not_waited_for() -> None:
    router = ScriptedRouter(breaks(2))
    reader, context = Reader(), Context()
    long = partial(RequestBackoff, 3600, first=3600)
    delivery = delivering(router, asking([1], 9), context, reader, limit=5, backoff=long)
    await delivery.start()
    await router.nobody_left.wait()
    context.kill()
    await delivery.close()
    assert router.asked == [0]
    assert [migration.outcome for migration in delivery.history.finished_migrations] == ["cancelled"]


async def test_an_answer_that_broke_after_its_last_token_is_complete() -> None:
    ends = [answer_to([1], 4)[-1]]
    for length, reason in ((4, "length"), (9, "stop")):
        conditions = StopConditions(max_tokens=length, stop_token_ids_hidden=ends if reason == "stop" else None)
        request = PreprocessedRequest(token_ids=[1], stop_conditions=conditions)
        for limit in (0, 1):
            router = ScriptedRouter(breaks(4), None)
            client, delivery = await told(router, request, limit)
            assert client.finished
            assert (client.finished.reason, client.finished.usage.completion_tokens) == (reason, 4)
            assert delivery.history.migrations == 0


async def test_requests_with_state_at_the_worker_do_not_move() -> None:
    pinned = asking([1], 9, routing=Routing(backend_instance_id=0))
    reader, _ = await run(ScriptedRouter(breaks(1), None), pinned, limit=3)
    assert isinstance(reader.error, Disconnected)


async def test_a_guided_answer_is_continued_where_the_workers_can_do_that() -> None:
    guided = asking([1], 9, sampling_options=SamplingOptions(guided_decoding={"json": {}}))
    router = ScriptedRouter(breaks(2), breaks(3), None)
    reader, _ = await run(router, guided, limit=3, resumes_guided=lambda: True)
    whole = answer_to([1], 9)
    assert reader.tokens_seen == whole
    assert [(list(each.token_ids), each.resumed_tokens) for each in router.requests] == [
        ([1], 0),
        ([1, *whole[:2]], 2),
        ([1, *whole[:5]], 5),
    ]


async def test_a_guided_answer_is_repeated_where_no_worker_can_continue_it() -> None:
    for sampling in (GREEDY_GUIDED, SamplingOptions(guided_decoding={}, seed=7)):
        guided = asking([1], 9, sampling_options=sampling)
        router = ScriptedRouter(breaks(2), breaks(1), breaks(4), None)
        reader, delivery = await run(router, guided, limit=3)
        assert reader.tokens_seen == answer_to([1], 9)
        assert router.requests == [guided] * 4
        assert [each.outcome for each in delivery.history.finished_migrations] == ["success"] * 3


async def test_a_sampled_guided_answer_gets_a_seed_with_which_it_can_be_repeated() -> None:
    guided = asking([1], 9, sampling_options=SamplingOptions(temperature=0.7, guided_decoding={"json": {}}))
    seeds = set()
    for _ in range(4):
        router = ScriptedRouter(breaks(2), breaks(4), None)
        reader, delivery = await run(router, guided, limit=3)
        assert reader.tokens_seen == answer_to([1], 9)
        assert delivery.history.migrations == 2
        assert len({each.sampling_options.seed for each in router.requests}) == 1
        seeds.add(router.requests[0].sampling_options.seed)
    assert guided.sampling_options.seed is None
    assert None not in seeds
    assert len(seeds) > 1


async def test_no_seed_is_drawn_where_none_is_needed() -> None:
    sampled = SamplingOptions(guided_decoding={"json": {}})
    for sampling, limit, resumes in ((sampled, 0, False), (sampled, 3, True), (SamplingOptions(), 3, False)):
        router = ScriptedRouter(None)
        await run(router, asking([1], 9, sampling_options=sampling), limit, resumes_guided=lambda can=resumes: can)
        assert router.requests[0].sampling_options.seed is None


async def test_a_guided_answer_that_is_repeated_differently_fails_and_its_worker_stays_in_rotation() -> None:
    for sampling in (GREEDY_GUIDED, SamplingOptions(guided_decoding={"json": {}})):
        router = ScriptedRouter(breaks(3), None)
        router.workers[1] = Speaking(router, EngineOutput(token_ids=[5, 6, 7, 8]))
        reader, _ = await run(router, asking([1], 9, sampling_options=sampling), limit=3)
        assert isinstance(reader.error, Unavailable)
        assert reader.tokens_seen == answer_to([1], 9)[:3]
        assert router.inhibited == [0]
        assert router.placements[-1].told[-1] == "released"


async def test_a_guided_answer_that_ends_before_what_was_sent_fails() -> None:
    said = answer_to([1], 9)
    for last in (EngineOutput(token_ids=said[:2], finish_reason="stop"), EngineOutput(token_ids=said[:2])):
        router = ScriptedRouter(breaks(3), None)
        router.workers[1] = Speaking(router, last, error=None)
        reader, _ = await run(router, asking([1], 9, sampling_options=GREEDY_GUIDED), limit=3)
        assert isinstance(reader.error, Unavailable)


class RepeatedTo(Reader):
    different = False

    def repeated(self) -> None: ...

    def differs(self) -> None:
        self.different = True


@given(st.integers(0, 6), st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_of_a_repeated_answer_only_what_follows_is_passed_on(delivered: int, sizes: list[int]) -> None:
    """With the log probabilities of the tokens that follow, however the worker divides its answer."""
    whole = list(range(10, 20))
    ids_of_steps = [whole[sum(sizes[:at]) :][:size] for at, size in enumerate(sizes)]
    reader = RepeatedTo()
    repetition = Repetition(whole[:delivered], reader)
    for ids in ids_of_steps:
        item = EngineOutput(token_ids=ids, log_probs=[-float(id) for id in ids], tokens=[str(id) for id in ids])
        repetition.item(item) if len(ids) % 2 else repetition.tokens(ids)
    assert reader.tokens_seen == whole[delivered : sum(sizes)]
    for item in reader.items:
        assert item.log_probs == [-float(id) for id in item.token_ids]
        assert item.tokens == [str(id) for id in item.token_ids]
    repetition.end()
    assert reader.different == (sum(sizes) < delivered)


async def test_guided_requests_are_begun_anew_as_long_as_nothing_was_said() -> None:
    guided = asking([1], 9, sampling_options=SamplingOptions(guided_decoding={"json": {}}))
    router = ScriptedRouter(breaks(0), None)
    reader, delivery = await run(router, guided, limit=3)
    assert reader.tokens_seen == answer_to([1], 9)
    assert (delivery.history.migrations, delivery.history.restarts) == (1, 1)


async def test_a_request_in_text_is_begun_anew_as_long_as_nothing_was_said() -> None:
    chunk = {"choices": [{"delta": {"content": "hi"}}]}
    for said, asked in (([], [0, 1]), ([chunk], [0])):
        router = ScriptedRouter(None, None)
        router.workers = {0: Speaking(router, *said), 1: Speaking(router, chunk, error=None)}
        reader = Reader()
        delivery = delivering(router, {"messages": []}, Context(), reader, limit=3)
        await delivery.start()
        async with asyncio.timeout(PATIENCE):
            await reader.done.wait()
        await delivery.close()
        assert reader.items == [chunk]
        assert router.asked == asked


async def test_an_answer_that_broke_after_its_finish_reason_is_complete() -> None:
    router = ScriptedRouter(None, None)
    router.workers[0] = Speaking(router, EngineOutput(token_ids=[5], finish_reason="stop"))
    reader, _ = await run(router, asking([1], 9), limit=3)
    assert reader.error is None
    assert reader.tokens_seen == [5]
    assert router.asked == [0]


@pytest.mark.parametrize(("before", "cached"), [(2, 0), (0, 1)], ids=["after some output", "before any output"])
async def test_what_a_continuation_finds_cached_is_not_counted_as_cached(before: int, cached: int) -> None:
    """It may be what the same request left there."""
    router = ScriptedRouter(breaks(before), None)
    usage = Usage(prompt_tokens=1 + before, completion_tokens=1, prompt_tokens_details={"cached_tokens": 1})
    router.workers[1] = Speaking(router, EngineOutput(token_ids=[5], finish_reason="stop", completion_usage=usage))
    reader, _ = await run(router, asking([1], 9), limit=3)
    assert reader.usage
    assert reader.usage.prompt_tokens == 1
    assert reader.usage.prompt_tokens_details == {"cached_tokens": cached}


async def test_a_fault_in_finding_the_next_worker_is_told() -> None:
    class Faulty(ScriptedRouter):
        async def place(self, *args: Any, **kwargs: Any) -> ScriptedPlacement:
            if self.placements:
                raise RuntimeError("a fault")
            return await super().place(*args, **kwargs)

    reader, delivery = await run(Faulty(breaks(1), None), asking([1], 9), limit=3)
    assert isinstance(reader.error, Disconnected)
    assert [migration.outcome for migration in delivery.history.finished_migrations] == ["failure"]


class Speaking(Scripted):
    """Says these items and is gone, or ends where there is no error."""

    def __init__(self, router: ScriptedRouter, *items: Any, error: type[DynamoException] | None = Disconnected) -> None:
        super().__init__(router, [])
        self._items = items
        self._error = error

    def send(self, request: Any, context: Context, sink: Sink, **_: Any) -> CancelStream:
        for item in self._items:
            sink.item(item)
        if self._error:
            sink.fail(self._error("gone"))
        else:
            sink.end()
        return nothing_to_cancel


async def test_text_without_ids_cannot_be_gone_on_from() -> None:
    router = ScriptedRouter(None, None)
    router.workers[0] = Speaking(router, EngineOutput(token_ids=[5]), EngineOutput(text="Hello"))
    reader, delivery = await run(router, asking([1], 9), limit=3)
    assert isinstance(reader.error, Disconnected)
    assert router.asked == [0]
    assert delivery.history.migrations == 0


async def test_text_that_comes_with_its_ids_is_gone_on_from() -> None:
    router = ScriptedRouter(None, None)
    router.workers[0] = Speaking(router, EngineOutput(token_ids=answer_to([1], 1), text="Hello"))
    reader, delivery = await run(router, asking([1], 9), limit=3)
    assert reader.error is None
    assert reader.tokens_seen == answer_to([1], 9)
    assert delivery.history.migrations == 1


async def test_text_says_that_the_prompt_is_computed() -> None:
    router = ScriptedRouter(None)
    router.workers[0] = Speaking(router, EngineOutput(text="Hello"), EngineOutput(text=" world"))
    await run(router, asking([1], 9), limit=0)
    assert router.placements[0].told == ["first token", "released"]


async def test_a_request_nobody_wants_any_more_does_not_move() -> None:
    context = Context()
    context.stop_generating()
    reader, delivery = await run(ScriptedRouter(breaks(1), None), asking([1], 9), limit=3, context=context)
    assert isinstance(reader.error, Disconnected)
    assert delivery.history.migrations == 0


async def test_a_clients_mistake_is_not_tried_elsewhere() -> None:
    class Refusing(ScriptedRouter):
        async def place(self, *_: Any, **__: Any) -> ScriptedPlacement:
            worker = Scripted(self, [None])
            worker.send = lambda *a, **k: a[2].fail(InvalidArgument("no"))  # type: ignore[method-assign]
            return ScriptedPlacement(0, worker)

    reader, _ = await run(Refusing(), asking([1], 9), limit=3)
    assert isinstance(reader.error, InvalidArgument)
