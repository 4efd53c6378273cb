"""What is booked is released, however a request ends; limits hold; others' bookings count."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.kv.messages import (
    RESERVATIONS,
    ActiveLoad,
    ReservationAdded,
    ReservationBatch,
    ReservationFreed,
    WorkerRank,
    subject,
)
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import (
    CannotConnect,
    Disconnected,
    InvalidRequest,
    ResourceExhausted,
    RouterQueueLimitExceeded,
    Unavailable,
    Unknown,
)
from dynamo.router import Router, Thresholds
from dynamo.router.load import replicas
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import Local
from support.scripted import PLACE, Asked, RouterSide, ScriptedWorker, asking, routing
from support.services import Nats
from support.waiting import PATIENCE, until

SIZED = ModelRuntimeConfig(total_kv_blocks=100, max_num_batched_tokens=16)
MODES = ("round-robin", "random", "least-loaded", "power-of-two", "kv")


def nothing_booked(side: RouterSide) -> bool:
    if isinstance(side.router, SimpleRouter):
        return side.router._in_flight == {}
    members = [WorkerRank(id) for id in side.client.instance_set.ids()]
    loads = side.kv.book.loads(members, (), asyncio.get_running_loop().time())
    return not any((*loads.prefill_tokens, *loads.active_blocks, *loads.requests)) and len(side.kv.book) == 0


def prefill(side: RouterSide, worker: ScriptedWorker) -> float:
    return side.kv.book.loads([WorkerRank(worker.id)], (), asyncio.get_running_loop().time()).prefill_tokens[0]


ENDINGS = ("answer", "leave at once", "leave after a token", "engine fails", "worker dies", "dies after a token")


async def end(asked: Asked, how: str, workers: list[ScriptedWorker]) -> None:
    """Bring one request to the end named."""
    held = None
    while held is None:
        held = next((worker.held.get_nowait() for worker in workers if not worker.held.empty()), None)
        if held is None:
            await asyncio.sleep(0)
    match how:
        case "answer":
            held.answer()
        case "leave at once":
            await asked.leave()
            return
        case "leave after a token":
            held.outlet.tokens([1])
            await asked.leave()
            return
        case "engine fails":
            held.outlet.fail(Unknown("boom"))
        case "worker dies":
            held.outlet.fail(Disconnected("gone"))
        case "dies after a token":
            held.outlet.tokens([1])
            held.outlet.fail(Disconnected("gone"))
    if "die" in how:  # it has moved
        await end(asked, "answer", workers)
        return
    await asked.done()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODES), st.lists(st.tuples(st.sampled_from(ENDINGS), st.text("ABC", min_size=1, max_size=4))))
def test_after_all_requests_have_ended_nothing_is_booked(mode: str, requests: list[tuple[str, str]]) -> None:
    async def check() -> None:
        local = Local()
        async with (
            ScriptedWorker(local, hold=True) as one,
            ScriptedWorker(local, hold=True) as two,
            routing(local, mode=mode) as side,
        ):
            await until(lambda: len(side.client.instance_set) == 2)
            for how, letters in requests:
                asked = Asked(side.router, asking(letters), limit=1)
                await asked.start()
                assert not nothing_booked(side)
                await end(asked, how, [one, two])
                assert asked.delivery.placement
                assert asked.delivery.placement.released
            assert nothing_booked(side)

    asyncio.run(check())


async def test_a_prompt_waits_until_its_first_token_and_is_in_use_until_its_end() -> None:
    local = Local()
    async with ScriptedWorker(local, hold=True) as worker, routing(local) as side:
        await side.settled(1)
        asked = Asked(side.router, asking("ABC"))
        await asked.start()
        assert prefill(side, worker) == 12
        held = await worker.held.get()
        held.outlet.tokens([1])
        await asked.first.wait()
        assert prefill(side, worker) == 0
        assert len(side.kv.book) == 1
        held.answer()
        await asked.done()
        assert nothing_booked(side)


async def test_a_request_that_moves_is_booked_at_its_new_place_with_what_it_has_generated() -> None:
    local = Local()
    async with ScriptedWorker(local, hold=True) as one, ScriptedWorker(local, hold=True) as two, routing(local) as side:
        await side.settled(2)
        asked = Asked(side.router, asking("AB", 9), limit=1)
        await asked.start()
        first, second = (one, two) if asked.delivery.instance_id == one.id else (two, one)
        held = await first.held.get()
        held.outlet.tokens([1, 2, 3, 4])
        held.outlet.fail(Disconnected("gone"))
        held = await second.held.get()
        assert asked.delivery.instance_id == second.id
        assert (prefill(side, first), prefill(side, second)) == (0, 12)
        held.answer()
        await asked.done()
        assert nothing_booked(side)


@pytest.mark.parametrize("mode", MODES)
async def test_nobody_there_is_unavailable(mode: str) -> None:
    async with routing(Local(), mode=mode) as side:
        with pytest.raises(Unavailable):
            await side.router.place(asking("A"))
        assert nothing_booked(side)


@pytest.mark.parametrize("mode", MODES)
async def test_a_worker_that_cannot_be_reached_is_passed_over_and_not_booked(mode: str) -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local, mode=mode) as side:
        await until(lambda: len(side.client.instance_set) == 2)
        del local.hub.routes[f"test/backend/generate/{one.id:x}"]
        try:
            for _ in range(4):
                placement = await side.open(asking("A"))
                assert placement.instance_id == two.id
                placement.release()
            with pytest.raises(CannotConnect):
                await side.open(asking("A"), pinned=one.id)
            assert nothing_booked(side)
        finally:
            local.hub.routes[f"test/backend/generate/{one.id:x}"] = local.hub.routes[
                f"test/backend/generate/{two.id:x}"
            ]


@pytest.mark.parametrize("mode", MODES)
async def test_when_none_can_be_reached_the_request_is_unavailable(mode: str) -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local, mode=mode) as side:
        await until(lambda: len(side.client.instance_set) == 2)
        paths = [f"test/backend/generate/{worker.id:x}" for worker in (one, two)]
        routes = {path: local.hub.routes.pop(path) for path in paths}
        try:
            with pytest.raises(Unavailable, match="can be reached"):
                await side.open(asking("A"))
            assert nothing_booked(side)
        finally:
            local.hub.routes.update(routes)


async def test_direct_needs_a_worker_to_be_named() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, mode="direct") as side:
        await until(lambda: len(side.client.instance_set) == 1)
        with pytest.raises(InvalidRequest, match="backend_instance_id"):
            await side.router.place(asking("A"))
        assert await side.ask(asking("A", backend_instance_id=worker.id)) == worker.id


async def test_least_loaded_and_power_of_two_look_at_what_is_in_flight() -> None:
    local = Local()
    for mode in ("least-loaded", "power-of-two"):
        async with (
            ScriptedWorker(local) as one,
            ScriptedWorker(local) as two,
            routing(local, mode=mode) as side,
        ):
            await until(lambda side=side: len(side.client.instance_set) == 2)
            for _ in range(3):
                await side.open(asking("A"), pinned=one.id)
            assert [(await side.open(asking("A"))).instance_id for _ in range(3)] == [two.id] * 3
            assert side.router.decisions[-1].reasons()["in_flight"] == 2


async def refused(router: Router, **fields: Any) -> bool:
    try:
        (await router.place(asking("ABCD"), **fields)).release()
    except ResourceExhausted:
        return True
    return False


async def test_when_all_are_busy_beyond_the_thresholds_requests_are_refused() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as one,
        ScriptedWorker(local) as two,
        routing(local, card=SIZED, active_prefill_tokens_threshold_frac=1.0) as side,
    ):
        await side.settled(2)
        places = [await side.router.place(asking("ABCDE")) for _ in range(2)]
        assert {place.instance_id for place in places} == {one.id, two.id}
        assert await refused(side.router)
        assert await refused(side.router, pinned=one.id)
        assert side.router.stats.rejected == 2
        places[0].first_token()
        assert not await refused(side.router)
        for place in places:
            place.release()
        side.router.thresholds = Thresholds(active_decode_blocks_threshold=0.02)
        place = await side.router.place(asking("ABC"))
        place.first_token()
        assert await refused(side.router, pinned=place.instance_id)
        assert not await refused(side.router)
        side.router.thresholds = Thresholds()
        assert not await refused(side.router, pinned=place.instance_id)


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
async def test_what_workers_report_counts_for_the_thresholds_too(mode: str) -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, mode=mode, card=SIZED) as side:
        await until(lambda: len(side.client.instance_set) == 1)
        side.router.thresholds = Thresholds(active_decode_blocks_threshold=0.5)

        def report(**load: Any) -> None:
            worker.runtime.events.publish(
                "namespace.test.component.backend.kv_metrics",
                msgspec.msgpack.encode(ActiveLoad(worker_id=worker.id, **load)),
            )

        async def settles(busy: bool, **load: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while await refused(side.router) != busy:
                    report(**load)
                    await asyncio.sleep(0)

        await settles(True, kv_used_blocks=60)
        await settles(False, kv_used_blocks=40)
        await settles(False, kv_used_blocks=60, kv_total_blocks=200)
        await settles(True, active_decode_blocks=60)
        side.router.thresholds = Thresholds(active_prefill_tokens_threshold=10)
        await settles(True, active_prefill_tokens=11)


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
async def test_a_report_that_is_not_told_again_is_forgotten(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamo.router.load.reported.LOAD_REPORT_SECONDS", 0.01)
    local = Local()
    async with (
        ScriptedWorker(local) as worker,
        routing(local, mode=mode, card=SIZED, active_decode_blocks_threshold=0.5) as side,
    ):
        await until(lambda: len(side.client.instance_set) == 1)
        load = ActiveLoad(worker_id=worker.id, kv_used_blocks=60)
        async with asyncio.timeout(PATIENCE):
            while not await refused(side.router):
                worker.runtime.events.publish(
                    "namespace.test.component.backend.kv_metrics", msgspec.msgpack.encode(load)
                )
                await asyncio.sleep(0)
            while await refused(side.router):
                await asyncio.sleep(0.001)


async def test_a_share_of_what_no_card_tells_is_never_exceeded() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, active_decode_blocks_threshold=0.0) as side:
        await side.settled(1)
        await side.router.place(asking("ABCD"))
        assert not await refused(side.router)
        side.router.thresholds = Thresholds(active_prefill_tokens_threshold_frac=0.0)
        assert not await refused(side.router)


async def test_requests_wait_while_all_have_too_much_and_go_by_priority_then_arrival() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, card=SIZED, queue_threshold=0.5) as side:
        await side.settled(1)
        first = await side.router.place(asking("ABCD"))
        order: list[str] = []

        async def wait(name: str, priority: int) -> None:
            place = await side.router.place(asking(f"{name}XYZ", priority=priority))
            order.append(name)
            place.first_token()
            place.release()

        waiting = []
        for name, priority in (("A", 0), ("B", 5), ("C", 0), ("D", -1), ("E", 5)):
            waiting.append(asyncio.create_task(wait(name, priority)))
            await until(lambda: side.router.waiting == len(waiting))
        waiting[2].cancel()
        await until(lambda: side.router.waiting == 4)
        first.first_token()
        await asyncio.gather(*waiting[:2], *waiting[3:])
        assert order == ["B", "E", "A", "D"]
        assert side.router.stats.queued == 5
        first.release()
        assert nothing_booked(side)
        assert worker.requests == []


async def test_shortest_prompts_first_where_that_is_asked_for() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=SIZED, queue_threshold=0, queue_policy="wspt") as side:
        await side.settled(1)
        first = await side.router.place(asking("ABCD"))
        order: list[str] = []

        async def wait(letters: str, priority: int) -> None:
            place = await side.router.place(asking(letters, priority=priority))
            order.append(letters)
            place.release()

        waiting = []
        for letters, priority in (("EEEEEEEE", 0), ("FF", 0), ("GGGGGGGG", 9)):
            waiting.append(asyncio.create_task(wait(letters, priority)))
            await until(lambda: side.router.waiting == len(waiting))
        first.release()
        await asyncio.gather(*waiting)
        assert order == ["GGGGGGGG", "FF", "EEEEEEEE"]


async def test_the_queue_is_bounded_and_a_new_worker_empties_it() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=SIZED, queue_threshold=0, queue_limit=1) as side:
        await side.settled(1)
        first = await side.router.place(asking("ABCD"))
        waiting = asyncio.create_task(side.router.place(asking("EFGH")))
        await until(lambda: side.router.waiting == 1)
        with pytest.raises(RouterQueueLimitExceeded):
            await side.router.place(asking("IJKL"))
        async with ScriptedWorker(local) as second:
            place = await waiting
            assert place.instance_id == second.id
            for one in (first, place):
                one.release()
        assert nothing_booked(side)


async def test_a_pinned_request_that_waits_does_not_hold_up_others() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as one,
        ScriptedWorker(local),
        routing(local, card=SIZED, queue_threshold=0) as side,
    ):
        await side.settled(2)
        places = [await side.router.place(asking("ABCD")) for _ in range(2)]
        here = next(place for place in places if place.instance_id == one.id)
        there = next(place for place in places if place.instance_id != one.id)
        pinned = asyncio.create_task(side.router.place(asking("E", priority=9), pinned=one.id))
        free = asyncio.create_task(side.router.place(asking("F")))
        await until(lambda: side.router.waiting == 2)
        there.first_token()
        assert (await free).instance_id == there.instance_id
        here.first_token()
        assert (await pinned).instance_id == one.id


async def test_when_the_last_worker_leaves_those_that_wait_are_told() -> None:
    local = Local()
    async with routing(local, card=SIZED, queue_threshold=0) as side:
        async with ScriptedWorker(local):
            await side.settled(1)
            await side.router.place(asking("ABCD"))
            waiting = asyncio.create_task(side.router.place(asking("EFGH")))
            await until(lambda: side.router.waiting == 1)
        with pytest.raises(Unavailable):
            await waiting
        assert side.router.waiting == 0


def flap(side: RouterSide, worker: ScriptedWorker) -> None:
    """Discovery loses a worker and finds it again."""
    (instance,) = [one for one in side.client.instance_set.all() if one.instance_id == worker.id]
    side.client.instance_set.remove(worker.id)
    side.client.instance_set.put(instance)


async def test_a_worker_that_leaves_and_comes_back_still_has_its_requests() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local) as side:
        await side.settled(1)
        places = [await side.router.place(asking(letters)) for letters in ("AB", "CD", "EF")]
        flap(side, worker)
        assert prefill(side, worker) == 24
        places[0].first_token()
        assert prefill(side, worker) == 16
        for place in places:
            place.release()
        assert nothing_booked(side)


async def test_frontends_tell_each_other_what_ends_while_its_worker_is_away() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as worker,
        routing(local, replica_sync=True) as one,
        routing(local, replica_sync=True) as two,
    ):
        await one.settled(1)
        await two.settled(1)
        place = await one.router.place(asking("ABCD"))
        await until(lambda: prefill(two, worker) == 16)
        one.client.instance_set.remove(worker.id)
        flap(two, worker)
        assert prefill(two, worker) == 16
        place.release()
        await until(lambda: nothing_booked(two))


@pytest.mark.parametrize("events", ["memory", "zmq"])
async def test_frontends_count_each_others_requests(events: str) -> None:
    local = Local()
    async with (
        ScriptedWorker(local, events=events) as worker,
        routing(local, events=events, replica_sync=True) as one,
        routing(local, events=events, replica_sync=True) as two,
    ):
        await one.settled(1)
        await two.settled(1)
        placement = None
        async with asyncio.timeout(PATIENCE):
            while not prefill(two, worker):  # over ZMQ the first ones find nobody listening
                if placement:
                    placement.release()
                placement = await one.router.place(asking("ABCD"))
                await asyncio.sleep(0.01)
        assert placement
        await until(lambda: prefill(two, worker) == 16)
        assert prefill(one, worker) == 16, "its own echo must not count"
        placement.first_token()
        await until(lambda: prefill(two, worker) == 0)
        assert len(two.kv.book) == 1
        placement.release()
        await until(lambda: nothing_booked(two))
        assert nothing_booked(one)


def tell(worker: ScriptedWorker, batch: ReservationBatch) -> None:
    """As another router does."""
    worker.runtime.events.publish(subject(PLACE, RESERVATIONS), msgspec.msgpack.encode(batch))


def added(worker: ScriptedWorker, name: str) -> ReservationAdded:
    return ReservationAdded(router_id=7, request_id=name, worker_id=worker.id, prompt_tokens=16, prefill_tokens=16)


async def test_what_a_living_router_runs_counts_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "EXPIRY_SECONDS", 0.0)
    local = Local()
    async with (
        ScriptedWorker(local) as worker,
        routing(local, replica_sync=True) as one,
        routing(local, replica_sync=True) as two,
    ):
        await one.settled(1)
        await two.settled(1)
        placement = await one.router.place(asking("ABCD"))
        await until(lambda: prefill(two, worker) == 16)
        assert two.kv.replicas
        two.kv.replicas.expire(asyncio.get_running_loop().time())
        assert prefill(two, worker) == 16
        placement.release()
        await until(lambda: nothing_booked(two))


async def test_of_a_router_that_has_gone_silent_nothing_is_kept() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, replica_sync=True) as side:
        await side.settled(1)
        own = await side.router.place(asking("E"))
        tell(worker, ReservationBatch([added(worker, "1"), added(worker, "2")], router_id=7))
        await until(lambda: prefill(side, worker) == 36)
        assert side.kv.replicas
        now = asyncio.get_running_loop().time()
        side.kv.replicas.expire(now + replicas.SILENT_SECONDS - 1)
        assert prefill(side, worker) == 36
        side.kv.replicas.expire(now + replicas.SILENT_SECONDS + 1)
        assert prefill(side, worker) == 4
        own.release()
        assert nothing_booked(side)


async def test_an_end_that_was_lost_is_made_good_by_what_its_router_says_it_runs() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, replica_sync=True) as side:
        await side.settled(1)
        tell(worker, ReservationBatch([added(worker, name) for name in "123"], router_id=7))
        await until(lambda: prefill(side, worker) == 48)
        tell(worker, ReservationBatch([], router_id=7, running=["2", "unheard of"]))
        await until(lambda: prefill(side, worker) == 16)
        tell(worker, ReservationBatch([ReservationFreed(router_id=7, request_id="2")], router_id=7))
        await until(lambda: nothing_booked(side))


async def test_bookings_of_a_router_that_never_says_what_it_runs_expire() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local, replica_sync=True) as side:
        await side.settled(1)
        tell(worker, ReservationBatch([added(worker, "1")]))
        await until(lambda: prefill(side, worker) == 16)
        assert side.kv.replicas
        now = asyncio.get_running_loop().time()
        side.kv.replicas.expire(now + replicas.EXPIRY_SECONDS - 1)
        assert prefill(side, worker) == 16
        side.kv.replicas.expire(now + replicas.EXPIRY_SECONDS + 1)
        assert nothing_booked(side)


async def test_a_router_says_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "HEARTBEAT_SECONDS", 0.01)
    local, heard = Local(), list[ReservationBatch]()
    async with ScriptedWorker(local) as worker, routing(local, replica_sync=True) as side:
        await side.settled(1)
        await worker.runtime.events.subscribe(
            subject(PLACE, RESERVATIONS),
            lambda _, data: heard.append(msgspec.msgpack.decode(data, type=ReservationBatch)),
        )
        first, second = [await side.router.place(asking(letters)) for letters in "AB"]
        await until(lambda: ["0", "1"] in [batch.running for batch in heard])
        first.release()
        await until(lambda: heard[-1].running == ["1"])
        second.release()
        await until(lambda: heard[-1].running == [])


async def test_bookings_after_a_full_message_are_sent_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MAX_HASHES", 4)
    local, heard = Local(), list[ReservationBatch]()
    async with ScriptedWorker(local) as worker, routing(local, replica_sync=True) as side:
        await side.settled(1)
        await worker.runtime.events.subscribe(
            subject(PLACE, RESERVATIONS),
            lambda _, data: heard.append(msgspec.msgpack.decode(data, type=ReservationBatch)),
        )
        for letters in ("ABC", "ABC", "A", "B"):
            await side.router.place(asking(letters))
        await until(lambda: [len(batch.events) for batch in heard if batch.events] == [1, 2, 1])


async def test_bookings_of_long_prompts_fit_into_messages(nats: Nats) -> None:
    local = Local()
    async with (
        ScriptedWorker(local, events=nats.url) as worker,
        routing(local, events=nats.url, replica_sync=True) as one,
        routing(local, events=nats.url, replica_sync=True) as two,
    ):
        await one.settled(1)
        await two.settled(1)
        lengths = [131_072] * 8 + [600_000]
        requests = [
            PreprocessedRequest(token_ids=range(length * at, length * (at + 1))) for at, length in enumerate(lengths)
        ]
        placements = [await one.router.place(request) for request in requests]
        await until(lambda: prefill(two, worker) == sum(lengths))
        for placement in placements:
            placement.release()
        await until(lambda: nothing_booked(two))
