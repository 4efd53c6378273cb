from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.index.index import Index
from dynamo.kv.messages import KvSnapshot, Tier, WorkerRank
from dynamo.kv.publish import engine_listener, feed
from dynamo.kv.publish.engine_listener import dropped_events
from dynamo.llm import KvEventPublisher
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.runtime.status import StatusConfig
from support.kv_reader import Blocks, FakeEngine, Form, Reader, ask_snapshot, content
from support.services import Nats
from support.waiting import PATIENCE

BIG = 1 << 63
"""A hash that is negative where hashes are signed."""


@pytest.fixture(params=["memory", "zmq", "nats"])
async def join(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], DistributedRuntime]]:
    """Makes participants of one network."""
    local = Local()
    config = RuntimeConfig.in_process({})
    if request.param == "zmq":
        environ = {"DYN_FILE_KV": str(tmp_path), "DYN_TCP_RPC_HOST": "127.0.0.1"}
        config = RuntimeConfig.from_env(environ, discovery_backend="file", event_plane="zmq")
    if request.param == "nats":
        nats: Nats = request.getfixturevalue("shared_nats")
        environ = {"DYN_FILE_KV": str(tmp_path), "NATS_SERVER": nats.url}
        config = RuntimeConfig.from_env(environ, discovery_backend="file", request_plane="nats", event_plane="nats")
    made: list[DistributedRuntime] = []

    def make() -> DistributedRuntime:
        made.append(DistributedRuntime(config=config, local=local))
        return made[-1]

    yield make
    for runtime in made:
        await runtime.close()


@pytest.fixture
async def worker() -> AsyncIterator[DistributedRuntime]:
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        yield runtime


def publisher(runtime: DistributedRuntime, **options: Any) -> KvEventPublisher:
    return KvEventPublisher(runtime.endpoint("ns.backend.generate"), kv_block_size=4, **options)


def device(*prompts: Sequence[int]) -> Blocks:
    """All blocks of these prompts, on the device."""
    return {(Tier.Device, block) for prompt in prompts for block in prompt_hashes(prompt, 4)}


async def test_a_reader_on_the_network_learns_what_is_in_the_cache(join: Callable[[], DistributedRuntime]) -> None:
    worker, router = join(), join()
    await worker.start()
    out = publisher(worker)
    await router.start()
    # What is published before a subscriber has found the publisher may be lost: the snapshot stands in for it.
    out.publish_stored(list(range(8)), [4, 4], [10, 11])
    reader = await Reader().listen(router)
    await ask_snapshot(router, worker.instance_id)
    async with asyncio.timeout(PATIENCE):
        while not reader.messages:
            reader.last.clear()
            reader.take(await ask_snapshot(router, worker.instance_id))
            out.publish_stored([9] * 4, [4], [99], parent_hash=11)
            out.publish_removed([99])
            await asyncio.sleep(0.05)
    out.publish_stored(list(range(8, 16)), [4, 4], [BIG + 12, 13], parent_hash=11)
    out.publish_removed([13])
    final = await ask_snapshot(router, worker.instance_id)
    assert final.last_event_id is not None
    blocks = await reader.until(worker.instance_id, final.last_event_id)
    assert blocks == content(final) == device(range(12))


async def test_who_found_the_worker_hears_its_first_event(join: Callable[[], DistributedRuntime]) -> None:
    worker, router = join(), join()
    await worker.start()
    out = publisher(worker)
    await router.start()
    await ask_snapshot(router, worker.instance_id)
    reader = await Reader().listen(router)
    out.publish_stored(list(range(4)), [4], [10])
    assert await reader.until(worker.instance_id, 0) == device(range(4))


async def test_a_large_cache_fits_into_a_snapshot(join: Callable[[], DistributedRuntime]) -> None:
    worker, router = join(), join()
    await worker.start()
    out = publisher(worker)
    names = list(range(BIG, BIG + 100_000))
    out.publish_stored([7] * 400_000, [4] * 100_000, names)
    await router.start()
    assert content(await ask_snapshot(router, worker.instance_id)) == device([7] * 400_000)


async def test_a_snapshot_too_large_for_one_item_comes_in_several_to_who_takes_them(
    join: Callable[[], DistributedRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SNAPSHOT_BLOCKS", 50)
    worker, router = join(), join()
    await worker.start()
    names = list(range(60))
    publisher(worker).publish_stored([7] * 4 * len(names), [4] * len(names), names)
    await router.start()
    await ask_snapshot(router, worker.instance_id)
    client = await router.endpoint("ns.backend.kv_snapshot").client()
    request = {"worker_id": worker.instance_id, "parts": True}
    stream = await client.direct(request, worker.instance_id, annotated=False)
    told = [msgspec.convert(item, KvSnapshot) async for item in stream]
    assert [len(content(part)) for part in told] == [50, 10]
    assert set().union(*map(content, told)) == device([7] * 4 * len(names))
    assert {part.last_event_id for part in told} == {0}


async def test_every_rank_counts_from_zero_and_all_share_one_snapshot_endpoint(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    ranks = [publisher(worker, dp_rank=rank) for rank in range(3)]
    for rank, out in enumerate(ranks):
        for at in range(rank + 1):
            out.publish_stored([at] * 4, [4], [100 + at])
    for rank in range(3):
        assert len(await reader.until(worker.instance_id, rank, rank)) == rank + 1
        snapshot = await ask_snapshot(worker, worker.instance_id, rank)
        assert (snapshot.last_event_id, content(snapshot)) == (rank, reader.blocks[worker.instance_id, rank])
    client = await worker.endpoint("ns.backend.kv_snapshot").client()
    assert client.instance_ids() == [worker.instance_id]


async def test_a_rank_that_published_nothing_has_an_empty_snapshot(worker: DistributedRuntime) -> None:
    publisher(worker)
    for rank in (0, 7):
        snapshot = await ask_snapshot(worker, worker.instance_id, rank)
        assert (snapshot.tiers, snapshot.last_event_id) == ([], None)


async def test_a_snapshot_for_another_worker_is_refused(worker: DistributedRuntime) -> None:
    publisher(worker)
    client = await worker.endpoint("ns.backend.kv_snapshot").client()
    await client.wait_for_instances()
    with pytest.raises(DynamoException, match="this is worker"):
        async for _ in await client.direct({"worker_id": 5}, worker.instance_id, annotated=False):
            pass


async def test_the_older_component_is_as_good_as_an_endpoint(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = KvEventPublisher(worker.namespace("ns").component("backend"), worker.instance_id, 4)
    out.publish_stored([1, 2, 3, 4], [4], [1])
    assert await reader.until(worker.instance_id, 0)


async def test_what_older_programs_pass_for_not_given_is_understood(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = KvEventPublisher(worker.endpoint("ns.backend.generate"), 0, 4)
    out.publish_stored([1, 2, 3, 4], [4], [1], None, None, None, None)
    assert await reader.until(worker.instance_id, 0) == device([1, 2, 3, 4])


async def test_what_one_turn_of_the_loop_publishes_goes_out_in_few_messages(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    for at in range(300):
        out.publish_stored([at] * 4, [4], [at])
    await reader.until(worker.instance_id, 299)
    assert [len(events) for events in reader.messages] == [128, 128, 44]
    out.publish_stored([1001] * 36000, [4] * 9000, list(range(10_000, 19_000)))
    out.publish_stored([1002] * 16000, [4] * 4000, list(range(20_000, 24_000)))
    out.publish_stored([1003] * 16000, [4] * 4000, list(range(30_000, 34_000)))
    out.publish_stored([1004] * 4000, [4] * 1000, list(range(40_000, 41_000)))
    out.publish_removed(list(range(10_000, 19_000)))
    blocks = await reader.until(worker.instance_id, 306)
    assert [len(events) for events in reader.messages[3:]] == [1, 2, 2, 1, 1]
    assert len(blocks) == 300 + 9000


async def test_events_may_wait_for_others(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker, batching_timeout_ms=20)
    for at in range(3):
        out.publish_stored([at] * 4, [4], [at])
        await asyncio.sleep(0)
    await reader.until(worker.instance_id, 2)
    assert [len(events) for events in reader.messages] == [3]


async def test_an_engine_may_publish_from_a_thread(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)

    def engine() -> None:
        for at in range(50):
            out.publish_stored([at] * 4, [4], [at])
        with pytest.raises(ValueError, match="block_hashes"):
            out.publish_removed([1 << 64])
        out.publish_removed([0])

    thread = threading.Thread(target=engine)
    thread.start()
    blocks = await reader.until(worker.instance_id, 50)
    thread.join()
    assert blocks == device(*([at] * 4 for at in range(1, 50)))


async def test_blocks_that_are_not_full_are_left_out_with_all_that_hangs_on_them(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    out.publish_stored(list(range(11)), [4, 3, 4], [1, 2, 3])
    out.publish_stored([7] * 4, [4], [4], parent_hash=3)
    out.publish_removed([2, 3, 4])
    out.publish_stored([8] * 4, [4], [5], parent_hash=1)
    assert await reader.until(worker.instance_id, 1) == device([0, 1, 2, 3, 8, 8, 8, 8])


async def test_a_block_with_an_image_in_it_is_left_out(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    publisher(worker).publish_stored(list(range(8)), [4, 4], [1, 2], block_mm_infos=[None, {"mm_objects": [1]}])
    assert await reader.until(worker.instance_id, 0) == device(range(4))


async def test_adapters_and_salts_keep_equal_tokens_apart(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    out.publish_stored([1, 2, 3, 4], [4], [1])
    out.publish_stored([1, 2, 3, 4], [4], [2], lora_name="a")
    out.publish_stored([1, 2, 3, 4], [4], [3], cache_salt="a")
    out.publish_stored([1, 2, 3, 4, 5], [4], [4], is_eagle=True)
    assert len(await reader.until(worker.instance_id, 3)) == 4


async def test_blocks_of_another_size_stop_the_publishing_once_and_loudly(
    worker: DistributedRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    out = publisher(worker)
    for _ in range(2):
        out.publish_stored(list(range(16)), [16], [2])
    out.publish_stored([1, 2, 3, 4], [4], [3])
    assert (await ask_snapshot(worker, worker.instance_id)).tiers == []
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "blocks of 16 tokens, the model card says 4" in warnings[0]


async def test_after_blocks_that_fit_those_of_another_size_are_only_left_out(
    worker: DistributedRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    out.publish_stored([1, 2, 3, 4], [4], [1])
    out.publish_stored(list(range(16)), [16], [2])
    out.publish_stored([1, 2, 3, 4], [4], [3], parent_hash=1)
    assert await reader.until(worker.instance_id, 1) == device([1, 2, 3, 4, 1, 2, 3, 4])
    assert "blocks of 16 tokens where the model card says 4" in caplog.text


async def test_a_batch_is_published_whole_or_not_at_all(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    stored = {"type": "stored", "token_ids": [1, 2, 3, 4], "num_block_tokens": [4], "block_hashes": [1]}
    wrong: Any
    for wrong in (
        {"type": "removed", "block_hashes": ["x"]},
        {"type": "removed"},
        {"type": "moved"},
        {"type": ["stored"]},
        "stored",
    ):
        with pytest.raises(ValueError, match="event 1"):
            out.publish_batch([stored, wrong])
    child = {**stored, "block_hashes": [2], "parent_hash": 1}
    out.publish_batch([stored, child, {"type": "removed", "block_hashes": [2]}])
    assert await reader.until(worker.instance_id, 2) == device([1, 2, 3, 4])
    out.publish_batch([{"type": "cleared"}])
    assert await reader.until(worker.instance_id, 3) == set()


async def test_after_shutdown_nothing_is_claimed(worker: DistributedRuntime) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    out.publish_stored([1, 2, 3, 4], [4], [1])
    out.shutdown()
    out.shutdown()
    assert await reader.until(worker.instance_id, 1) == set()
    with pytest.raises(RuntimeError, match="shut down"):
        out.publish_removed([1])
    again = publisher(worker)
    again.publish_stored([1, 2, 3, 4], [4], [1])
    assert await reader.until(worker.instance_id, 2) == device([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_block_size": 0}, "kv_block_size"),
        ({"kv_block_size": 16, "dp_rank": -1}, "dp_rank"),
        ({"kv_block_size": 16, "worker_id": -1}, "worker_id"),
        ({"kv_block_size": 16, "batching_timeout_ms": 20_000}, "batching_timeout_ms"),
        ({"kv_block_size": 16, "zmq_endpoint": "localhost:5557"}, "zmq_endpoint"),
        ({"kv_block_size": 16, "zmq_replay_endpoint": "tcp://host"}, "zmq_replay_endpoint"),
    ],
)
async def test_a_publisher_refuses_wrong_settings_by_name(
    worker: DistributedRuntime, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        KvEventPublisher(worker.endpoint("ns.backend.generate"), **options)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([1, 2, 3, 4], [4], [1, 2]), "num_block_tokens"),
        (([1, 2, 3], [4], [1]), "token_ids has 3"),
        (([1, 2, 3, -4], [4], [1]), r"token_ids\[3\]"),
        (([1, 2, 3, 1 << 32], [4], [1]), r"token_ids\[3\]"),
        (([1, 2, 3, "4"], [4], [1]), r"token_ids\[3\]"),
        (([1, 2, 3, 4], [-4], [1]), "num_block_tokens"),
        (([1, 2, 3, 4], [4], [1 << 64]), r"block_hashes\[0\]"),
        (([1, 2, 3, 4], [4], [True]), r"block_hashes\[0\]"),
        (([1, 2, 3, 4], [4], [1], 1.5), "parent_hash"),
        (([1, 2, 3, 4], [4], [1], None, [None, None]), "block_mm_infos"),
        (([1, 2, 3, 4], [4], [1], None, None, 7), "lora_name"),
        (([1, 2, 3, 4], [4], [1], None, None, None, False, b"salt"), "cache_salt"),
        (([1, 2, 3, 4], [4], [1], None, None, None, True), "token_ids has 4"),
    ],
)
async def test_wrong_blocks_are_refused_by_name(
    worker: DistributedRuntime, arguments: tuple[Any, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        publisher(worker).publish_stored(*arguments)


async def test_a_block_under_an_unknown_parent_is_not_published(
    worker: DistributedRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await Reader().listen(worker)
    out = publisher(worker)
    for at in range(5):
        out.publish_stored([1, 2, 3, 4], [4], [at], parent_hash=77)
    out.publish_removed([3])
    out.publish_stored([1, 2, 3, 4], [4], [9])
    assert await reader.until(worker.instance_id, 0) == device([1, 2, 3, 4])
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


async def test_snapshot_and_tasks_end_with_their_runtime() -> None:
    local = Local()
    before = asyncio.all_tasks()
    engine = FakeEngine()
    async with DistributedRuntime(config=RuntimeConfig.in_process({}), local=local) as worker:
        publisher(worker, zmq_endpoint=engine.address)
        await ask_snapshot(worker, worker.instance_id)
        worker.shutdown()
    await engine.close()
    assert asyncio.all_tasks() == before
    async with DistributedRuntime(config=RuntimeConfig.in_process({}), local=local) as router:
        client = await router.endpoint("ns.backend.kv_snapshot").client()
        assert client.instance_ids() == []


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("stored"), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.just("removed"), st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("cleared")),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("turn")),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_events_and_snapshots_say_what_a_naive_cache_holds(actions: list[tuple[Any, ...]]) -> None:
    """Six chains of two blocks each; a block stored twice is there until it is removed twice."""
    asyncio.run(_against_naive(actions))


def claimed(held: Counter[int]) -> Blocks:
    """Name N is the block N % 2 of chain N // 2."""
    return {(Tier.Device, prompt_hashes([name // 2] * 8, 4)[name % 2]) for name in +held}


async def _against_naive(actions: list[tuple[Any, ...]]) -> None:
    held: Counter[int] = Counter()
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as worker:
        reader = await Reader().listen(worker)
        middle = None
        out = publisher(worker)
        await ask_snapshot(worker, worker.instance_id)
        for action in actions:
            match action:
                case ("stored", chain, length):
                    names = [2 * chain, 2 * chain + 1][: min(length, 2)]
                    out.publish_stored([chain] * 4 * len(names), [4] * len(names), names)
                    held.update(names)
                case ("removed", names):
                    out.publish_removed(names)
                    for name in names:
                        held[name] = max(0, held[name] - 1)
                case ("cleared",):
                    out.publish_cleared()
                    held.clear()
                case ("snapshot",):
                    middle = await ask_snapshot(worker, worker.instance_id)
                    assert content(middle) == claimed(held)
                case ("turn",):
                    await asyncio.sleep(0)
        last = await ask_snapshot(worker, worker.instance_id)
        if last.last_event_id is None:
            assert not reader.blocks
            return
        assert await reader.until(worker.instance_id, last.last_event_id) == claimed(held)
        assert reader.blocks[worker.instance_id, 0] == content(last)
        if middle:
            late = Index()
            late.replace(middle)
            for event in [event for message in reader.messages for event in message]:
                if middle.last_event_id is None or event.event_id > middle.last_event_id:
                    late.apply(event)
            late_blocks = structs.replace(last, tiers=late.snapshot(WorkerRank(worker.instance_id)))
            assert content(late_blocks) == content(last)


async def listening(worker: DistributedRuntime, engine: FakeEngine, **options: Any) -> KvEventPublisher:
    out = publisher(worker, zmq_endpoint=engine.address, zmq_topic="kv-", **options)
    await engine.heard()
    return out


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    await engine.close()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("form", ["map", "positional"])
async def test_an_engines_own_events_are_published_in_either_form(
    worker: DistributedRuntime, engine: FakeEngine, form: Form, signed: bool
) -> None:
    engine.form, engine.signed = form, signed
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    tokens = list(range(12))
    await engine.say(engine.stored([BIG + 1, BIG + 2], tokens[:8]), engine.stored([3], tokens[8:], BIG + 2))
    await engine.say(engine.stored([BIG + 1], tokens[:4], medium="CPU"), engine.removed([3]))
    await engine.say(engine.stored([5], [9, 9, 9, 9]))
    held = device(tokens[:8], [9] * 4) | {(Tier.Host, block) for block in prompt_hashes(tokens[:4], 4)}
    assert await reader.until(worker.instance_id, 4) == held
    assert content(await ask_snapshot(worker, worker.instance_id)) == held
    await engine.say(engine.cleared())
    assert await reader.until(worker.instance_id, 5) == set()


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("number", [10_000_000, 1 << 61])
async def test_an_engine_may_number_its_batches_as_it_likes(
    worker: DistributedRuntime, engine: FakeEngine, number: int, replay: bool
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine, zmq_replay_endpoint=engine.replay_address if replay else None)
    await engine.say(engine.stored([1], [1] * 4))
    engine.count_from(number)
    await engine.say(engine.stored([2], [2] * 4))
    await engine.say(engine.stored([3], [3] * 4))
    assert await reader.until(worker.instance_id, 3) == device([2] * 4, [3] * 4)


async def test_a_batch_with_a_number_below_zero_is_unreadable_and_ends_nothing(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine, zmq_replay_endpoint=engine.replay_address)
    await engine.say(engine.stored([1], [1] * 4))
    engine.count_from(-5)
    await engine.say(engine.stored([2], [2] * 4))
    engine.count_from(7)
    await engine.say(engine.stored([3], [3] * 4))
    assert await reader.until(worker.instance_id, 2) == device([3] * 4)


async def test_an_error_nobody_expected_empties_what_is_claimed_and_ends_nothing(
    worker: DistributedRuntime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    await engine.say(engine.stored([1], [1] * 4))
    await reader.until(worker.instance_id, 0)
    with monkeypatch.context() as patched:
        patched.setattr(engine_listener, "decode_batch", lambda _: 1 / 0)
        await engine.say(engine.stored([2], [2] * 4))
        assert await reader.until(worker.instance_id, 1) == set()
    await engine.say(engine.stored([3], [3] * 4))
    assert await reader.until(worker.instance_id, 2) == device([3] * 4)
    assert "ZeroDivisionError" in caplog.text


async def test_blocks_that_an_engine_names_without_their_tokens_harm_nothing(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    await engine.say(engine.stored([1], [1] * 4))
    placeholder = {**engine.stored([1], [], medium="CPU"), "block_size": 0}
    await engine.say(placeholder, engine.stored([2], [2] * 4, 1))
    await engine.say(engine.removed([1], medium="CPU"), engine.stored([3], [3] * 4, 2))
    assert await reader.until(worker.instance_id, 2) == device([1] * 4 + [2] * 4 + [3] * 4)


async def test_events_lost_between_engine_and_worker_are_replayed(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await engine.say(engine.stored([1], [1] * 4), lost=True)
    await listening(worker, engine, zmq_replay_endpoint=engine.replay_address)
    await engine.say(engine.stored([2], [2] * 4, 1))
    await engine.say(engine.stored([3], [3] * 4, 2), lost=True)
    await engine.say(engine.stored([4], [4] * 4, 3))
    assert await reader.until(worker.instance_id, 3) == device([1] * 4 + [2] * 4 + [3] * 4 + [4] * 4)
    assert dropped_events(worker.namespace("ns").component("backend")).batches == 0


async def test_events_lost_for_good_leave_nothing_claimed_that_may_be_gone(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    await engine.say(engine.stored([1], [1] * 4))
    await engine.say(engine.removed([1]), lost=True)
    await engine.say(engine.stored([2], [2] * 4))
    assert await reader.until(worker.instance_id, 2) == device([2] * 4)
    assert dropped_events(worker.namespace("ns").component("backend")).batches == 1
    assert [type(event.data).__name__ for message in reader.messages for event in message] == [
        "Stored",
        "Cleared",
        "Stored",
    ]


async def test_what_engines_have_dropped_is_a_metric_of_the_worker() -> None:
    status = StatusConfig(port=0, host="127.0.0.1")
    async with DistributedRuntime(config=structs.replace(RuntimeConfig.in_process({}), status=status)) as runtime:
        component = runtime.namespace("ns").component("backend")
        for batches in (2, 3):  # the ranks of a worker share one count
            dropped_events(component).count(batches)
        assert runtime.status
        families = {family.name: family for family in runtime.status.metrics()}
        [sample] = families["dynamo_component_kv_publisher_engines_dropped_events"].samples
    assert (sample.name, sample.value) == ("dynamo_component_kv_publisher_engines_dropped_events_total", 5)
    place = {"dynamo_namespace": "ns", "dynamo_component": "backend", "worker_id": f"{runtime.instance_id:x}"}
    assert sample.labels == place


async def test_a_replay_that_begins_too_late_counts_from_where_it_begins(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine, zmq_replay_endpoint=engine.replay_address)
    await engine.say(engine.stored([1], [1] * 4))
    await engine.say(engine.removed([1]), lost=True)
    await engine.say(engine.stored([2], [2] * 4), lost=True)
    engine.forget(2)
    await engine.say(engine.stored([3], [3] * 4, 2))
    assert await reader.until(worker.instance_id, 3) == device([2] * 4 + [3] * 4)
    assert dropped_events(worker.namespace("ns").component("backend")).batches == 1


async def test_a_replay_longer_than_the_engines_socket_holds_arrives_whole(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    engine.replayed_at_once = 4
    for number in range(10):
        await engine.say(engine.stored([number], [number] * 4), lost=True)
    await listening(worker, engine, zmq_replay_endpoint=engine.replay_address)
    await engine.say(engine.stored([10], [10] * 4))
    assert await reader.until(worker.instance_id, 10) == device(*([number] * 4 for number in range(11)))


async def test_an_engine_that_starts_anew_is_heard_again_with_an_empty_cache(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    await engine.say(engine.stored([1], [1] * 4))
    await engine.say(engine.stored([2], [2] * 4))
    await reader.until(worker.instance_id, 1)
    await engine.restart()
    assert await reader.until(worker.instance_id, 2) == set()
    await engine.say(engine.stored([3], [3] * 4))
    assert await reader.until(worker.instance_id, 3) == device([3] * 4)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x92\xcb" + bytes(8) + b"\x91\x05"])
async def test_a_batch_that_cannot_be_read_empties_what_is_claimed_and_ends_nothing(
    worker: DistributedRuntime, engine: FakeEngine, payload: bytes
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    await engine.say(engine.stored([1], [1] * 4))
    await engine.say_raw(payload)
    await engine.say(engine.stored([2], [2] * 4))
    assert await reader.until(worker.instance_id, 2) == device([2] * 4)


async def test_an_engine_with_blocks_of_another_size_is_not_published(
    worker: DistributedRuntime, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    out = await listening(worker, engine)
    engine.block_size = 8
    await engine.say(engine.stored([2], [2] * 8))
    async with asyncio.timeout(PATIENCE):
        while "stops publishing KV events" not in caplog.text:
            await asyncio.sleep(0.001)
    out.publish_stored([1] * 4, [4], [1])
    assert (await ask_snapshot(worker, worker.instance_id)).tiers == []


async def test_a_slower_tier_with_blocks_of_another_size_is_left_out_alone(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    larger = {**engine.stored([1], [1] * 8, medium="CPU"), "block_size": 8}
    await engine.say(larger, engine.stored([2], [2] * 4))
    await engine.say(larger, engine.stored([3], [3] * 4, 2))
    assert await reader.until(worker.instance_id, 1) == device([2] * 4 + [3] * 4)


async def test_an_engine_whose_blocks_fitted_before_it_started_anew_is_not_stopped_by_others(
    worker: DistributedRuntime, engine: FakeEngine
) -> None:
    reader = await Reader().listen(worker)
    await listening(worker, engine)
    await engine.say(engine.stored([1], [1] * 4))
    await engine.say_raw(b"")
    await engine.say({**engine.stored([2], [2] * 8), "block_size": 8})
    await engine.say(engine.stored([3], [3] * 4))
    assert await reader.until(worker.instance_id, 2) == device([3] * 4)
