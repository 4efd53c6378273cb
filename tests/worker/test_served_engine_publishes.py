"""What a served engine publishes of itself."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from dynamo.engines.base import KvSocket
from dynamo.engines.echo import EchoCore
from dynamo.engines.mocker import MockerArgs
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import ActiveLoad, Tier
from dynamo.protocols.errors import Unavailable
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.worker import serve_engine
from support.kv_reader import FakeEngine, Reader, ask_snapshot, content
from support.mockers import Mocker, answer
from support.waiting import PATIENCE

NETWORK = RuntimeConfig.in_process({})


@pytest.fixture
def local() -> Local:
    return Local()


@pytest.mark.parametrize("dp_size", [1, 2])
async def test_whoever_replays_a_mockers_events_knows_its_cache(local: Local, dp_size: int) -> None:
    """Far more is asked than fits, so that blocks are shared, evicted and computed again."""
    rng = random.Random(1)
    args = MockerArgs(block_size=4, num_gpu_blocks=64, speedup_ratio=0, dp_size=dp_size, max_num_seqs=8)
    router = DistributedRuntime(config=NETWORK, local=local)
    reader = await Reader().listen(router)
    async with router, Mocker(NETWORK, local, args) as mocker:
        client = await router.endpoint("ns.backend.generate").client()
        prompts = [[rng.randrange(3)] * 8 + [rng.randrange(9) for _ in range(rng.randrange(1, 60))] for _ in range(60)]
        await asyncio.gather(*[answer(client, prompt, 9, mocker.worker_id) for prompt in prompts])
        for rank in range(dp_size):
            snapshot = await ask_snapshot(router, mocker.worker_id, rank)
            assert snapshot.last_event_id is not None
            blocks = await reader.until(mocker.worker_id, snapshot.last_event_id, rank)
            assert blocks == {(Tier.Device, block) for block in mocker.cached(rank)}
            assert blocks == content(snapshot)


async def test_a_snapshot_in_the_middle_of_work_is_the_cache_at_its_event(local: Local) -> None:
    args = MockerArgs(block_size=4, num_gpu_blocks=48, speedup_ratio=0, max_num_seqs=4)
    router = DistributedRuntime(config=NETWORK, local=local)
    async with router, Mocker(NETWORK, local, args) as mocker:
        early = await Reader().listen(router)
        client = await router.endpoint("ns.backend.generate").client()
        await ask_snapshot(router, mocker.worker_id)
        rng = random.Random(2)
        work = [answer(client, [rng.randrange(4) for _ in range(20)], 30, mocker.worker_id) for _ in range(400)]
        working = asyncio.gather(*work)
        compared = 0
        while not working.done():
            snapshot = await ask_snapshot(router, mocker.worker_id)
            if snapshot.last_event_id is not None:
                naive = Reader()
                await early.until(mocker.worker_id, snapshot.last_event_id)
                for event in [event for message in early.messages for event in message]:
                    if event.event_id <= snapshot.last_event_id:
                        naive.apply(event)
                assert naive.blocks[mocker.worker_id, 0] == content(snapshot)
                compared += 1
        await working
        assert compared > 3


async def test_load_is_published_as_it_changes_and_served_to_whoever_asks(local: Local) -> None:
    args = MockerArgs(block_size=4, num_gpu_blocks=64, speedup_ratio=0, dp_size=2)
    loads: list[ActiveLoad] = []
    changed = asyncio.Event()

    def heard(subject: str, data: bytes) -> None:
        loads.append(msgspec.msgpack.decode(data, type=ActiveLoad))
        changed.set()

    router = DistributedRuntime(config=NETWORK, local=local)
    async with router:
        await router.events.subscribe("namespace.ns.component.backend.kv_metrics", heard)
        async with Mocker(NETWORK, local, args) as mocker:
            client = await router.endpoint("ns.backend.generate").client()
            stream = await client.direct(
                {"token_ids": [1] * 100, "stop_conditions": {"max_tokens": 100}, "routing": {"dp_rank": 1}},
                mocker.worker_id,
            )
            async with asyncio.timeout(PATIENCE):
                while not any(load.dp_rank == 1 for load in loads):
                    changed.clear()
                    await changed.wait()
            assert {(load.worker_id, load.kv_total_blocks) for load in loads} == {(mocker.worker_id, 64)}
            _ = [item async for item in stream]
            async with asyncio.timeout(PATIENCE):
                while [load for load in loads if load.dp_rank == 1][-1].kv_used_blocks != 0:
                    changed.clear()
                    await changed.wait()
            asked = await (await router.endpoint("ns.backend.load_metrics").client()).direct(
                None, mocker.worker_id, annotated=False
            )
            (figures,) = [item async for item in asked]
            idle = {
                "active_decode_blocks": 0,
                "active_prefill_tokens": 0,
                "kv_used_blocks": 0,
                "kv_total_blocks": 64,
            }
            assert figures == {"worker_id": mocker.worker_id, "ranks": [{"dp_rank": rank, **idle} for rank in (0, 1)]}


async def test_the_cache_is_emptied_on_request_but_not_under_a_running_request(local: Local) -> None:
    args = MockerArgs(block_size=4, num_gpu_blocks=64)
    router = DistributedRuntime(config=NETWORK, local=local)
    reader = await Reader().listen(router)
    async with router, Mocker(NETWORK, local, args) as mocker:
        generate = await router.endpoint("ns.backend.generate").client()
        clear = await router.endpoint("ns.backend.clear_kv_blocks").client()
        request = {"token_ids": [1] * 20, "stop_conditions": {"max_tokens": 200}}
        running = await generate.direct(request, mocker.worker_id)
        await anext(running)
        with pytest.raises(Unavailable, match="while requests run"):
            _ = [item async for item in await clear.direct({}, mocker.worker_id, annotated=False)]
        assert mocker.cached()
        await running.aclose()
        async with asyncio.timeout(PATIENCE):
            while mocker.engine.load()[0].kv_used_blocks:
                await asyncio.sleep(0)
        told = [item async for item in await clear.direct({}, mocker.worker_id, annotated=False)]
        assert [item["status"] for item in told] == ["success"]
        assert not mocker.cached()
        snapshot = await ask_snapshot(router, mocker.worker_id)
        assert content(snapshot) == set()
        assert snapshot.last_event_id is not None
        assert await reader.until(mocker.worker_id, snapshot.last_event_id) == set()


class Relayed(EchoCore):
    """Echoes, and has its KV events on a socket."""

    def __init__(self, socket: KvSocket) -> None:
        super().__init__(0)
        self._socket = socket

    def kv_sockets(self) -> list[KvSocket]:
        return [self._socket]


async def test_the_events_on_an_engines_own_socket_are_relayed(local: Local) -> None:
    fake = FakeEngine()
    runtime = DistributedRuntime(config=NETWORK, local=local)
    async with runtime:
        reader = await Reader().listen(runtime)
        engine = Relayed(KvSocket(address=fake.address, block_size=4, dp_rank=1, replay_address=fake.replay_address))
        await engine.start()
        serving = asyncio.create_task(serve_engine(runtime.endpoint("ns.backend.generate"), engine))
        await fake.heard()
        await fake.say(fake.stored([1, 2], [5] * 8))
        assert await reader.until(runtime.instance_id, 0, 1) == {
            (Tier.Device, block) for block in prompt_hashes([5] * 8, 4)
        }
        runtime.shutdown()
        await serving
        await engine.close()
    await fake.close()


async def test_an_engine_that_knows_nothing_of_itself_is_served_without_publishing(local: Local) -> None:
    runtime = DistributedRuntime(config=NETWORK, local=local)
    async with runtime:
        engine = EchoCore(0)
        await engine.start()
        serving = asyncio.create_task(serve_engine(runtime.endpoint("ns.backend.generate"), engine))
        client: Any = await runtime.endpoint("ns.backend.generate").client()
        await client.wait_for_instances()
        for name in ("kv_snapshot", "load_metrics"):
            assert (await runtime.endpoint(f"ns.backend.{name}").client()).instance_ids() == []
        runtime.shutdown()
        await serving
        await engine.close()
