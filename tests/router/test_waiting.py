"""Requests that wait for a place: for whom, for how long, and who may pass them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dynamo.kv.messages import KV_METRICS, ActiveLoad, subject
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import RouterQueueLimitExceeded
from dynamo.router import Placement, Thresholds
from dynamo.runtime import Local
from support.scripted import PLACE, RouterSide, ScriptedWorker, asking, routing
from support.waiting import PATIENCE, until

SIZED = ModelRuntimeConfig(total_kv_blocks=100, max_num_batched_tokens=16)
RANKS = ModelRuntimeConfig(total_kv_blocks=100, max_num_batched_tokens=16, data_parallel_size=2)


async def queued(side: RouterSide, letters: str, **fields: object) -> asyncio.Task[Placement]:
    """A request that waits."""
    before = side.router.waiting
    routing = {"dp_rank": fields.pop("dp_rank")} if "dp_rank" in fields else {}
    task = asyncio.create_task(side.router.place(asking(letters, **routing), **fields))  # type: ignore[arg-type]
    await until(lambda: side.router.waiting > before or task.done())
    assert not task.done()
    return task


async def at_once(side: RouterSide, letters: str, tenant: Tenant | None = None) -> Placement:
    """A request that need not wait."""
    async with asyncio.timeout(PATIENCE):
        return await side.router.place(asking(letters), tenant=tenant)


def report(worker: ScriptedWorker, **load: Any) -> None:
    data = msgspec.msgpack.encode(ActiveLoad(worker_id=worker.id, **load))
    worker.runtime.events.publish(subject(PLACE, KV_METRICS), data)


async def test_a_request_that_waits_does_not_go_to_a_busy_worker() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as busy,
        ScriptedWorker(local) as full,
        routing(local, card=SIZED, queue_threshold=0, active_decode_blocks_threshold=0.02) as side,
    ):
        await side.settled(2)
        (await side.router.place(asking("ABC"), pinned=busy.id)).first_token()
        there = await side.router.place(asking("DE"), pinned=full.id)
        waiting = await queued(side, "F")
        there.first_token()
        assert (await waiting).instance_id == full.id


async def test_a_request_that_waits_is_not_refused_when_all_become_busy() -> None:
    local = Local()
    async with (
        ScriptedWorker(local),
        routing(local, card=SIZED, queue_threshold=0, active_decode_blocks_threshold=0.5) as side,
    ):
        await side.settled(1)
        there = await side.router.place(asking("ABC"))
        waiting = await queued(side, "F")
        side.router.thresholds = Thresholds(active_decode_blocks_threshold=0.02)
        there.first_token()
        assert side.router.waiting == 1
        there.release()
        (await waiting).release()


async def test_a_request_that_waits_goes_when_thresholds_are_raised() -> None:
    local = Local()
    async with (
        ScriptedWorker(local),
        routing(local, card=SIZED, queue_threshold=0, active_decode_blocks_threshold=0.5) as side,
    ):
        await side.settled(1)
        there = await side.router.place(asking("ABC"))
        waiting = await queued(side, "F")
        side.router.thresholds = Thresholds(active_decode_blocks_threshold=0.02)
        there.first_token()
        assert side.router.waiting == 1
        side.router.thresholds = Thresholds()
        async with asyncio.timeout(PATIENCE):
            (await waiting).release()


async def test_a_request_that_waits_goes_when_its_worker_reports_that_it_is_no_longer_busy() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as worker,
        routing(local, card=SIZED, queue_threshold=0, active_decode_blocks_threshold=0.5) as side,
    ):
        await side.settled(1)
        there = await side.router.place(asking("ABC"))
        waiting = await queued(side, "F")
        report(worker, kv_used_blocks=60)
        await until(lambda: side.kv._reported and side.kv._reported.all())
        there.release()
        assert side.router.waiting == 1
        report(worker, kv_used_blocks=10)
        async with asyncio.timeout(PATIENCE):
            (await waiting).release()


async def test_a_request_that_waits_goes_when_the_report_it_waited_for_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dynamo.router.load.reported.LOAD_REPORT_SECONDS", 0.5)
    local = Local()
    async with (
        ScriptedWorker(local) as worker,
        routing(local, card=SIZED, queue_threshold=0, active_decode_blocks_threshold=0.5) as side,
    ):
        await side.settled(1)
        there = await side.router.place(asking("ABC"))
        waiting = await queued(side, "F")
        report(worker, kv_used_blocks=60)
        await until(lambda: side.kv._reported and side.kv._reported.all())
        there.release()
        async with asyncio.timeout(PATIENCE):
            (await waiting).release()


async def test_who_waits_for_one_rank_holds_up_nobody_that_can_go_to_another() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=RANKS, queue_threshold=0) as side:
        await side.settled(1)
        there = await side.router.place(asking("ABCD", dp_rank=1))
        waiting = await queued(side, "E", dp_rank=1)
        assert (await at_once(side, "F")).dp_rank == 0
        there.first_token()
        assert (await waiting).dp_rank == 1


async def test_who_must_avoid_a_worker_holds_up_nobody_that_can_go_there() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as one,
        ScriptedWorker(local) as two,
        routing(local, card=SIZED, queue_threshold=0) as side,
    ):
        await side.settled(2)
        there = await side.router.place(asking("ABCD"), pinned=one.id)
        waiting = await queued(side, "E", avoid=[two.id])
        assert (await at_once(side, "F")).instance_id == two.id
        there.first_token()
        assert (await waiting).instance_id == one.id


async def test_nobody_passes_who_waits_for_a_rank_on_that_rank() -> None:
    local = Local()
    async with (
        ScriptedWorker(local) as worker,
        routing(local, card=RANKS, queue_threshold=0, overlap_weight=100.0) as side,
    ):
        await side.settled(1)
        await side.ask(asking("ABCDEFGH", dp_rank=1))
        await until(lambda: side.same_as(worker, 1))
        await side.router.place(asking("XY", dp_rank=1))
        assert (await at_once(side, "ABCDEFGHI")).dp_rank == 1, "it would rather be where its beginning is"
        waiting = await queued(side, "Z", dp_rank=1)
        assert (await at_once(side, "ABCDEFGHJ")).dp_rank == 0
        assert side.router.waiting == 1
        waiting.cancel()


async def served_order(side: RouterSide, waiting: dict[str, asyncio.Task[Placement]], first: Placement) -> list[str]:
    """The names of the requests in the order in which they are placed, one at a time."""
    order: list[str] = []
    placement = first
    left = dict(waiting)
    while left:
        placement.release()
        async with asyncio.timeout(PATIENCE):
            done, _ = await asyncio.wait(left.values(), return_when=asyncio.FIRST_COMPLETED)
        (name,) = [name for name, task in left.items() if task in done]
        order.append(name)
        placement = left.pop(name).result()
    placement.release()
    return order


async def test_a_key_with_no_prompt_under_way_need_not_wait_behind_a_flooding_one() -> None:
    local = Local()
    flood, light = Tenant("flood"), Tenant("light")
    async with ScriptedWorker(local), routing(local, card=SIZED, queue_threshold=0) as side:
        await side.settled(1)
        running = await side.router.place(asking("A"), tenant=flood)
        flooding = [await queued(side, letter, tenant=flood) for letter in "BCDEF"]
        for _ in range(2):
            running.first_token()
            async with asyncio.timeout(PATIENCE):
                running = await flooding.pop(0)
        ahead = await at_once(side, "G", tenant=light)
        second = await queued(side, "H", tenant=light)
        running.first_token()
        async with asyncio.timeout(PATIENCE):
            await flooding.pop(0)
        ahead.first_token()
        async with asyncio.timeout(PATIENCE):
            await second
        assert side.router.waiting == len(flooding)
        for task in flooding:
            task.cancel()


async def test_what_is_sent_ahead_to_a_worker_stays_within_a_batch() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=SIZED, queue_threshold=0) as side:
        await side.settled(1)
        await side.router.place(asking("A"), tenant=Tenant("flood"))
        ahead = [await at_once(side, letter, tenant=Tenant(letter)) for letter in "BCDE"]
        late = await queued(side, "F", tenant=Tenant("F"))
        ahead[2].first_token()
        async with asyncio.timeout(PATIENCE):
            await late


async def test_strict_priority_and_expected_length_order_the_requests_of_a_key() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=SIZED, queue_threshold=0, queue_policy="wspt") as side:
        await side.settled(1)
        first = await side.router.place(asking("A"))
        asked = {
            "long": asking("B", expected_output_tokens=1000),
            "short": asking("C", expected_output_tokens=10),
            "tier": asking("D", expected_output_tokens=9000, strict_priority=1),
        }
        waiting = {}
        for name, request in asked.items():
            waiting[name] = asyncio.create_task(side.router.place(request))
            await until(lambda: side.router.waiting == len(waiting))
        assert await served_order(side, waiting, first) == ["tier", "short", "long"]


async def test_in_a_full_queue_the_flooding_key_gives_way() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=SIZED, queue_threshold=0, queue_limit=2) as side:
        await side.settled(1)
        first = await side.router.place(asking("A"), tenant=Tenant("flood"))
        flood = [await queued(side, letter, tenant=Tenant("flood")) for letter in "BC"]
        light = asyncio.create_task(side.router.place(asking("D"), tenant=Tenant("light")))
        with pytest.raises(RouterQueueLimitExceeded):
            await flood[1]
        # The light key is sent ahead, so one more may wait, and no further one.
        async with asyncio.timeout(PATIENCE):
            await light
        more = await queued(side, "E", tenant=Tenant("flood"))
        with pytest.raises(RouterQueueLimitExceeded):
            await side.router.place(asking("F"), tenant=Tenant("flood"))
        (await light).release()
        first.release()
        async with asyncio.timeout(PATIENCE):
            (await flood[0]).release()
            await more


BOUNDED = ModelRuntimeConfig(max_num_seqs=32, max_num_batched_tokens=16)


@pytest.mark.parametrize("mode", ["kv", "round-robin", "least-loaded"])
async def test_where_keys_share_a_flood_of_long_answers_leaves_a_place_without_any_setting(mode: str) -> None:
    local = Local()
    flood, light = Tenant("flood", keys=2), Tenant("light", keys=2)
    async with ScriptedWorker(local), routing(local, card=BOUNDED, mode=mode) as side:
        await until(lambda: len(side.client.instance_set) == 1)
        running = []
        for _ in range(31):
            running.append(await at_once(side, "A", tenant=flood))
            running[-1].first_token()
        waiting = [await queued(side, letter, tenant=flood) for letter in "BCD"]
        own = await at_once(side, "L", tenant=light)
        own.first_token()
        second = await queued(side, "M", tenant=light)
        # The flood has had more by far: whoever had less goes first as soon as there is a place.
        for placement in running:
            placement.output_tokens = 100
        running.pop().release()
        running.pop().release()
        async with asyncio.timeout(PATIENCE):
            await second
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("mode", ["kv", "round-robin"])
async def test_a_batch_leaves_places_and_waits_behind_requests_that_somebody_waits_for(mode: str) -> None:
    local = Local()
    batch = Tenant("", background=True)
    async with ScriptedWorker(local), routing(local, card=BOUNDED, mode=mode) as side:
        await until(lambda: len(side.client.instance_set) == 1)
        lines = []
        for _ in range(28):
            lines.append(await at_once(side, "A", tenant=batch))
            lines[-1].first_token()
        waiting = await queued(side, "B", tenant=batch)
        for letter in "MNOP":
            (await at_once(side, letter)).first_token()
        for _ in range(4):
            lines.pop().release()
        assert not waiting.done()
        lines.pop().release()
        async with asyncio.timeout(PATIENCE):
            await waiting


async def test_one_key_alone_passes_no_queue() -> None:
    local = Local()
    async with ScriptedWorker(local), routing(local, card=BOUNDED, mode="round-robin") as side:
        await until(lambda: len(side.client.instance_set) == 1)
        for _ in range(100):
            await at_once(side, "A", tenant=Tenant("only"))
        assert not side.router.waiting
