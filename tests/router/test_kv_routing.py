"""Placement by what workers cache, over a network that loses events."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from dynamo.kv.follow.rank_sync import FollowConfig
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.index.index import Index
from dynamo.kv.messages import KV_WIRE_VERSION, KvSnapshot, RouterEvent, RouterEventBatch, Stored, WorkerRank
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import Local
from dynamo.runtime.events import EventPlane
from support.scripted import BLOCK, EAGER, Asked, RouterSide, ScriptedWorker, asking, prompt, routing
from support.services import Nats
from support.waiting import PATIENCE, until


def traffic(side: RouterSide) -> int:
    """Prompt tokens this router knows to have been sent."""
    members = [WorkerRank(id) for id in side.client.instance_set.ids()]
    loads = side.kv.book.loads(members, (), asyncio.get_running_loop().time())
    return round(sum(loads.sent) * loads.scale)


SEEDS = ("AB", "a"), ("ACD", "a"), ("ACE", "b")
FREE = ("ACDF", "a"), ("ACEG", "b")


async def hear_each_other(planes: list[EventPlane]) -> None:
    """Over ZMQ a publisher is reached some time after its first event."""
    for speaker in planes:
        for listener in planes:
            heard: list[bytes] = []
            subscription = await listener.subscribe("hello", lambda _, data, heard=heard: heard.append(data))
            async with asyncio.timeout(PATIENCE):
                while not heard:
                    speaker.publish("hello", b"")
                    await asyncio.sleep(0.001)
            subscription.unsubscribe()


@pytest.mark.parametrize("frontends", [1, 2])
@pytest.mark.parametrize("knows", ["memory", "zmq", "approximate"])
async def test_prompts_go_where_most_of_them_is_cached(knows: str, frontends: int) -> None:
    local = Local()
    events = "zmq" if knows == "zmq" else "memory"
    async with AsyncExitStack() as stack:
        workers = {name: await stack.enter_async_context(ScriptedWorker(local, events=events)) for name in "ab"}
        sides = [
            await stack.enter_async_context(
                routing(local, events=events, use_kv_events=knows != "approximate", replica_sync=True)
            )
            for _ in range(frontends)
        ]
        for side in sides:
            await side.settled(2)
        await hear_each_other([side.runtime.events for side in sides])
        sent = 0
        for turn, (letters, place) in enumerate((*SEEDS, *FREE)):
            for each in sides:
                await until(lambda each=each, sent=sent: traffic(each) == sent)
            side = sides[turn % frontends]
            sent += len(prompt(letters))
            pinned = {"backend_instance_id": workers[place].id} if turn < len(SEEDS) else {}
            assert await side.ask(asking(letters, **pinned)) == workers[place].id, letters
            if knows != "approximate":
                for each in sides:
                    await until(lambda each=each: all(each.same_as(worker) for worker in workers.values()))
        assert (workers["a"].blocks(), workers["b"].blocks()) == (5, 4)
        for side in sides:
            await until(lambda side=side: side.kv.known_blocks == 9)
            if knows != "approximate":
                index = side.kv.index
                assert (index.blocks(WorkerRank(workers["a"].id)), index.blocks(WorkerRank(workers["b"].id))) == (5, 4)


async def work(sides: list[RouterSide], workers: list[ScriptedWorker], rng: random.Random, turns: int) -> None:
    """Conversations that grow, and caches that forget."""
    for _ in range(turns):
        letters = rng.choice("ABC") + "".join(rng.choice("ABCDE") for _ in range(rng.randrange(1, 6)))
        await rng.choice(sides).ask(asking(letters))
        if rng.random() < 0.3:
            rng.choice(workers).evict(rng.randrange(1, 4))
        if rng.random() < 0.02:
            rng.choice(workers).clear()


async def converged(sides: list[RouterSide], workers: list[ScriptedWorker]) -> None:
    for side in sides:
        for worker in workers:
            await until(lambda side=side, worker=worker: side.same_as(worker))
        assert {worker.worker_id for worker in side.kv.index.workers} <= {worker.id for worker in workers}


@pytest.mark.parametrize("events", ["memory", "zmq"])
async def test_the_index_returns_to_the_workers_content_though_events_are_lost_and_doubled(events: str) -> None:
    rng = random.Random(5)
    local = Local()

    def lossy(_: bytes) -> int:
        return rng.choices((0, 1, 2), (1, 98, 1))[0]

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(ScriptedWorker(local, events=events)) for _ in range(3)]
        for worker in workers:
            worker.deliver = lossy
        side = await stack.enter_async_context(routing(local, events=events))
        await side.settled(3)
        await work([side], workers, rng, 300)
        for worker in workers:  # whatever comes last gets lost
            worker.deliver = lambda _: 0
            worker.store(prompt("XYZ"))
            worker.evict(1)
        await converged([side], workers)
        assert side.router.stats.snapshots > 3


async def test_a_router_that_starts_late_learns_everything_from_the_workers() -> None:
    local, rng = Local(), random.Random(2)
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two:
        async with routing(local) as first:
            await first.settled(2)
            await work([first], [one, two], rng, 40)
        async with routing(local) as second:
            await second.settled(2)
            await converged([second], [one, two])


async def test_a_worker_that_leaves_is_forgotten_and_its_successor_learned() -> None:
    local, rng = Local(), random.Random(3)
    async with routing(local) as side, ScriptedWorker(local) as stays:
        async with ScriptedWorker(local) as leaves:
            await side.settled(2)
            await work([side], [stays, leaves], rng, 40)
        await until(lambda: len(side.client.instance_set) == 1)
        asked = [await side.ask(asking("ABCDE")) for _ in range(8)]
        assert set(asked) == {stays.id}
        async with ScriptedWorker(local) as comes:
            await side.settled(2)
            await work([side], [stays, comes], rng, 40)
            await converged([side], [stays, comes])
            assert comes.requests


async def test_what_happened_during_an_outage_of_the_event_plane_is_made_good() -> None:
    local, rng = Local(), random.Random(4)
    async with routing(local) as side, ScriptedWorker(local) as one, ScriptedWorker(local) as two:
        await side.settled(2)
        await work([side], [one, two], rng, 20)
        (plane,) = local.bus.planes
        local.bus.planes.clear()
        await work([side], [one, two], rng, 20)
        one.clear()
        local.bus.planes[plane] = None
        await converged([side], [one, two])


async def test_an_outage_of_nats_is_made_good_too(nats: Nats) -> None:
    local, rng = Local(), random.Random(6)
    async with (
        ScriptedWorker(local, events=nats.url) as one,
        ScriptedWorker(local, events=nats.url) as two,
        routing(local, events=nats.url) as side,
    ):
        await side.settled(2)
        await work([side], [one, two], rng, 10)
        await converged([side], [one, two])
        nats.stop()
        await work([side], [one, two], rng, 10)
        one.clear()
        nats.start()
        await work([side], [one, two], rng, 10)
        await converged([side], [one, two])


async def test_a_publisher_that_counts_anew_is_noticed() -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        for letters in ("AB", "CD", "EF"):
            await side.ask(asking(letters))
        worker.clear()
        worker.last.clear()
        worker.store(prompt("GH"))
        await converged([side], [worker])


async def test_a_publisher_that_counts_anew_up_to_the_same_number_is_noticed() -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("AB"))
        await until(lambda: side.same_as(worker))
        worker.index = Index()
        worker.last.clear()
        worker.store(prompt("GH"))
        await converged([side], [worker])


async def test_what_is_known_of_a_worker_outlives_a_question_that_fails() -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("AB"))
        await until(lambda: side.same_as(worker))
        worker.snapshots = False
        asked = side.router.stats.snapshots
        await until(lambda: side.router.stats.snapshots > asked + 1)
        assert side.same_as(worker)
        worker.store(prompt("ABCD"))
        await until(lambda: side.same_as(worker))


async def expect_in_vain(side: RouterSide, rank: WorkerRank) -> float:
    """How long the next prompt may be missing after one that never comes, and one that is there."""
    follower = side.kv.follower
    assert follower
    before = side.router.stats.snapshots
    follower.expect(rank, prompt_hashes(prompt("XY"), BLOCK))
    await until(lambda: side.router.stats.snapshots > before)
    await until(lambda: follower.live)
    follower.expect(rank, prompt_hashes(prompt("AB"), BLOCK))
    return follower._ranks[rank].sync.patience


async def test_prompts_that_are_never_cached_lead_to_ever_fewer_questions_though_others_are() -> None:
    local = Local()
    slow = FollowConfig(patience=0.01, longest=60)
    async with routing(local, follow=slow) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("AB"))
        await until(lambda: side.same_as(worker))
        assert [await expect_in_vain(side, WorkerRank(worker.id)) for _ in range(3)] == [0.04, 0.16, 0.64]


async def test_snapshots_that_never_fit_the_events_are_asked_for_ever_more_rarely() -> None:
    local = Local()
    slow = FollowConfig(patience=0.01, longest=60)
    async with routing(local, follow=slow) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("A"))
        await until(lambda: side.same_as(worker))
        told = worker.snapshot
        worker.snapshot = lambda rank=0: KvSnapshot(version=2, worker_id=worker.id, tiers=[], last_event_id=0)  # type: ignore[method-assign]
        follower = side.kv.follower
        assert follower
        sync = follower._ranks[WorkerRank(worker.id)].sync
        for letter, pause in (("B", 0.02), ("C", 0.04)):
            worker.last[0] += 1
            worker.store(prompt(letter))
            await until(lambda pause=pause: sync.after_gap.next == pause)
            await until(lambda: follower.live)
        worker.snapshot = told  # type: ignore[method-assign]
        worker.last[0] += 1
        worker.store(prompt("D"))
        await until(lambda: side.same_as(worker))
        worker.store(prompt("E"))
        await until(lambda: side.same_as(worker))
        assert sync.after_gap.next == slow.patience


async def test_after_a_while_without_doubt_a_missing_prompt_is_asked_for_at_once_again() -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("AB"))
        await until(lambda: side.same_as(worker))
        await expect_in_vain(side, WorkerRank(worker.id))
        follower = side.kv.follower
        assert follower

        def eager() -> bool:
            follower.expect(WorkerRank(worker.id), prompt_hashes(prompt("AB"), BLOCK))
            return follower._ranks[WorkerRank(worker.id)].sync.patience == EAGER.patience

        await until(eager)


async def test_a_worker_that_lost_an_event_and_gives_no_snapshot_is_not_believed() -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("AB"))
        await until(lambda: side.same_as(worker))
        worker.snapshots = False
        worker.deliver = lambda _: 0
        worker.evict(1)
        worker.deliver = lambda _: 1
        worker.store(prompt("CD"))
        await until(lambda: not side.kv.index.blocks(WorkerRank(worker.id)))
        worker.snapshots = True
        await converged([side], [worker])


async def test_a_worker_without_snapshots_is_known_by_its_events_from_the_first_on() -> None:
    local = Local()
    worker = ScriptedWorker(local)
    worker.snapshots = False
    async with routing(local) as side, worker:
        await until(lambda: len(side.client.instance_set) == 1)
        await side.ask(asking("ABC"))
        await converged([side], [worker])


async def test_a_worker_without_snapshots_and_events_is_chosen_by_load(caplog: pytest.LogCaptureFixture) -> None:
    local = Local()
    worker = ScriptedWorker(local)
    worker.snapshots = False
    worker.deliver = lambda _: 0
    async with routing(local) as side, worker:
        await until(lambda: len(side.client.instance_set) == 1)
        assert await side.ask(asking("ABC")) == worker.id
        await until(lambda: "gives no snapshot of its KV cache" in caplog.text)
        assert "--use-kv-events=false" in caplog.text
        assert await side.ask(asking("ABC")) == worker.id


async def test_hashes_that_are_not_ours_are_told(caplog: pytest.LogCaptureFixture) -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        worker.salt = 12345
        await side.settled(1)

        async def ask_until_told() -> None:
            turn = 0
            while "block size or hashes are not those" not in caplog.text:
                turn += 1
                await side.ask(asking("ABC" + chr(ord("D") + turn % 20)))

        async with asyncio.timeout(PATIENCE):
            await ask_until_told()


async def test_malformed_messages_are_counted_and_harm_nothing() -> None:
    local = Local()
    listening: Any = {"replica_sync": True, "active_prefill_tokens_threshold": 10**6}
    async with routing(local, **listening) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        for topic in ("kv-events", "kv_metrics", "active_sequences_events"):
            for data in (b"", b"\xff\xff", b"\x81\xa1a\x01", b"\x90", b"\xc1" * 40):
                worker.runtime.events.publish(f"namespace.test.component.backend.{topic}", data)
        await side.ask(asking("AB"))
        await until(lambda: side.router.stats.malformed == 15)
        await converged([side], [worker])


async def test_an_event_that_names_a_block_twice_is_counted_and_leads_to_a_snapshot() -> None:
    local = Local()
    async with routing(local) as side, ScriptedWorker(local) as worker:
        await side.settled(1)
        worker.store(prompt("AB"))
        await until(lambda: side.same_as(worker))
        before = side.router.stats.snapshots
        number = worker.last[0] = worker.last[0] + 1
        event = RouterEvent(worker_id=worker.id, event_id=number, data=Stored([5, 6, 5]))
        message = msgspec.msgpack.encode(RouterEventBatch(version=KV_WIRE_VERSION, events=[event]))
        worker.runtime.events.publish("namespace.test.component.backend.kv-events", message)
        await until(lambda: side.router.stats.snapshots > before)
        await converged([side], [worker])
        assert side.router.stats.malformed == 1


def of_the_first_version(message: bytes, worker: ScriptedWorker) -> int:
    """An event of a build before versions; this kind looked the same otherwise."""
    old = {"events": [{"worker_id": worker.id, "event_id": worker.last[0], "data": {"type": "cleared"}}]}
    worker.runtime.events.publish("namespace.test.component.backend.kv-events", msgspec.msgpack.encode(old))
    return 0


async def test_a_worker_that_speaks_another_version_is_routed_by_load_only(caplog: pytest.LogCaptureFixture) -> None:
    local = Local()
    worker = ScriptedWorker(local)
    worker.deliver = lambda message: of_the_first_version(message, worker)

    async def tell(request: Any) -> AsyncIterator[Any]:
        part = {"tier": "device", "block_hashes": [1], "sequence_hashes": [2], "parents": [None]}
        yield {"worker_id": worker.id, "last_event_id": worker.last.get(0), "tiers": [part]}

    worker.tell = tell  # type: ignore[method-assign]
    async with routing(local) as side, worker:
        await until(lambda: len(side.client.instance_set) == 1)
        assert await side.ask(asking("ABC")) == worker.id
        await until(lambda: "gives no snapshot of its KV cache" in caplog.text)
        await until(lambda: side.router.stats.malformed == 1)
        assert "ignoring malformed KV events: Object missing required field `version`" in caplog.text
        assert side.kv.known_blocks == 0
        assert await side.ask(asking("ABC")) == worker.id


async def test_ranks_are_chosen_and_told_to_the_worker() -> None:
    local = Local()
    two = ModelRuntimeConfig(data_parallel_size=2)
    async with ScriptedWorker(local) as worker, routing(local, card=two) as side:
        await side.settled(1)
        await side.ask(asking("ABC", dp_rank=1))
        await until(lambda: side.same_as(worker, 1))
        request = asking("ABCD")
        await side.ask(request)
        assert request.routing is None, "the request itself is shared and must stay as it was"
        assert [one.routing and one.routing.dp_rank for one in worker.requests] == [1, 1]
        with pytest.raises(InvalidRequest, match="rank 7"):
            await side.router.place(asking("A", dp_rank=7))


async def test_events_of_a_rank_that_the_card_does_not_have_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, routing(local) as side:
        await side.settled(1)
        for letters in ("AB", "CD"):
            worker.store(prompt(letters), rank=3)
        worker.store(prompt("EF"))
        await until(lambda: side.same_as(worker))
        told = [record for record in caplog.records if "rank 3" in record.getMessage()]
        assert len(told) == 1
        assert "data_parallel_size" in told[0].getMessage()


async def test_salts_keep_prompts_apart() -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local) as side:
        await side.settled(2)
        await side.ask(asking("ABCDEF", backend_instance_id=one.id))
        await until(lambda: side.same_as(one))
        await side.ask(asking("ABCDEF", cache_salt="tenant"))
        assert side.router.decisions[-1].reasons()["chosen"]["overlap_blocks"] == 0
        await side.ask(asking("ABCDEF"))
        assert side.router.decisions[-1].worker_id == one.id
        assert side.router.stats.overlap_blocks == 6
        assert two.requests or len(one.requests) == 3


async def test_weight_0_follows_no_events_and_spreads_by_load() -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local, overlap_weight=0.0) as side:
        await until(lambda: len(side.client.instance_set) == 2)
        assert side.kv.follower is None
        for _ in range(8):
            await side.ask(asking("ABCDEF"))
        assert len(one.requests) == len(two.requests) == 4


async def test_text_requests_are_spread_by_their_length() -> None:
    local = Local()
    async with ScriptedWorker(local), ScriptedWorker(local), routing(local) as side:
        await side.settled(2)
        body = {"messages": [{"role": "user", "content": "x" * 4000}]}
        places = [(await side.router.place(body)).instance_id for _ in range(4)]
        assert sorted(map(places.count, set(places))) == [2, 2]


async def test_a_pinned_worker_that_is_not_there_is_told() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local) as side:
        await side.settled(1)
        with pytest.raises(InvalidRequest, match="no instance 12345"):
            await side.router.place(asking("A"), pinned=12345)


async def test_each_choice_tells_its_reasons(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="dynamo.router")
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, routing(local) as side:
        await side.settled(2)
        await side.ask(asking("ABCD", backend_instance_id=one.id))
        await until(lambda: side.same_as(one))
        asked = Asked(side.router, asking("ABCDE"))
        await asked.start()
        await asked.done()
        placement = asked.delivery.placement
        assert placement
        assert placement.decision
        reasons = placement.decision.reasons()
        assert reasons["mode"] == "kv"
        assert reasons["chosen"]["worker_id"] == one.id
        assert reasons["chosen"]["overlap_blocks"] == 4
        assert reasons["prompt_blocks"] == 5
        assert {candidate["worker_id"] for candidate in reasons["candidates"]} == {one.id, two.id}
        chosen = reasons["chosen"]
        assert chosen["cost"] == pytest.approx(
            chosen["work"] + chosen["waiting"] + chosen["crowding"] + chosen["spreading"]
        )
        assert (
            f"request {asked.context.id()}: worker {worker_name(one.id)} rank 0 of 2: 4 of 5 blocks cached"
            in caplog.text
        )
        stats = side.router.stats
        assert (stats.requests, stats.prompt_blocks, stats.overlap_blocks) == (2, 9, 4)
        assert sum(stats.hit_rate_counts) == 2
        assert stats.hit_rate_sum == pytest.approx(0.8)
