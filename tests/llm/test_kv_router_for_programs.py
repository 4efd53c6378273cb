from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from dynamo.engines.mocker import MockerArgs
from dynamo.llm import KvRouter, KvRouterConfig, compute_block_hash_for_seq, kv_router, reservations
from dynamo.llm.exceptions import InvalidArgument, ResourceExhausted, Unavailable
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig
from dynamo.router import RoutingConfig
from dynamo.router.standalone.service import serve_router
from dynamo.router.standalone.standalone import StandaloneRouter, prompt
from dynamo.runtime import DistributedRuntime, EndpointId, Local, RuntimeConfig
from dynamo.runtime.names import card_key
from support.mockers import Mocker
from support.waiting import PATIENCE

NETWORK = RuntimeConfig.in_process({})
ARGS = MockerArgs(block_size=4, num_gpu_blocks=256, speedup_ratio=0)
PROMPT = list(range(100, 140))


@pytest.fixture
def local() -> Local:
    return Local()


@pytest.fixture
async def mockers(local: Local) -> AsyncIterator[dict[int, Mocker]]:
    async with Mocker(NETWORK, local, ARGS) as one, Mocker(NETWORK, local, ARGS) as other:
        yield {one.worker_id: one, other.worker_id: other}


@pytest.fixture
async def runtime(local: Local) -> AsyncIterator[DistributedRuntime]:
    async with DistributedRuntime(config=NETWORK, local=local) as runtime:
        yield runtime


def router(runtime: DistributedRuntime, **config: Any) -> KvRouter:
    return KvRouter(runtime.endpoint("ns.backend.generate"), 4, KvRouterConfig(**config))


async def tokens(stream: AsyncIterator[dict[str, Any]]) -> list[int]:
    items = [item async for item in stream]
    assert all(type(item) is dict for item in items)
    assert items[-1]["finish_reason"] == "length"
    return [token for item in items for token in item["token_ids"]]


async def until_known(router: KvRouter, worker_id: int, blocks: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = (await router.get_overlap_scores(PROMPT))["workers"]
            if [row["device_blocks"] for row in rows if row["worker_id"] == worker_id] == [blocks]:
                return
            await asyncio.sleep(0.01)


async def test_a_prompt_goes_back_to_the_worker_that_has_it(
    mockers: dict[int, Mocker], runtime: DistributedRuntime
) -> None:
    kv = router(runtime)
    home = next(iter(mockers))
    first = await tokens(await kv.generate(PROMPT, "mock", {"max_tokens": 6}, worker_id=home))
    assert len(first) == 6
    await until_known(kv, home, 10)
    assert await kv.best_worker(PROMPT) == (home, 0, 10)
    again = {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 6}}
    assert await tokens(await kv.generate_from_request(again)) == first
    assert mockers[home].engine.load()[0].prefix_hit_tokens == 36
    dumped = json.loads(await kv.dump_events())
    assert {row["worker_id"] for row in dumped} == {home}
    assert {row["event"]["data"]["stored"]["blocks"][0]["block_hash"] for row in dumped} == mockers[home].cached()


async def test_a_prompt_may_be_packed(mockers: dict[int, Mocker], runtime: DistributedRuntime) -> None:
    kv = router(runtime)
    packed = array("I", PROMPT)
    home = next(iter(mockers))
    said = await tokens(await kv.generate(packed, "mock", {"max_tokens": 6}, worker_id=home))
    assert said == await tokens(await kv.generate(PROMPT, "mock", {"max_tokens": 6}, worker_id=home))
    await until_known(kv, home, 10)
    assert await kv.best_worker(packed) == (home, 0, 10)


async def test_what_is_booked_counts_until_it_is_freed(mockers: dict[int, Mocker], runtime: DistributedRuntime) -> None:
    kv = router(runtime, use_kv_events=False)

    async def loads() -> dict[int, tuple[int, int]]:
        return {
            row["worker_id"]: (row["potential_prefill_tokens"], row["potential_decode_blocks"])
            for row in await kv.get_potential_loads(list(range(1000, 1008)))
        }

    assert set((await loads()).values()) == {(8, 2)}
    worker_id, dp_rank, overlap = await kv.best_worker(PROMPT, request_id="a", update_indexer=True)
    assert (dp_rank, overlap) == (0, 0)
    (other,) = set(mockers) - {worker_id}
    assert await loads() == {worker_id: (48, 12), other: (8, 2)}
    with pytest.raises(ValueError, match="booked already"):
        await kv.best_worker(PROMPT, request_id="a")
    await kv.mark_prefill_complete("a")
    assert await loads() == {worker_id: (8, 12), other: (8, 2)}
    await kv.free("a")
    await kv.free("a")
    await kv.mark_prefill_complete("a")
    assert set((await loads()).values()) == {(8, 2)}
    assert (await kv.best_worker(PROMPT))[::2] == (worker_id, 10)
    with pytest.raises(ValueError, match="request_id"):
        await kv.best_worker(PROMPT, update_indexer=True)
    other_prompt = list(range(500, 540))
    await kv.best_worker(other_prompt, request_id="b")
    await kv.free("b")
    assert (await kv.best_worker(other_prompt))[2] == 0, "it was not to be remembered"


async def test_what_is_never_freed_does_not_count_for_ever(
    mockers: dict[int, Mocker], runtime: DistributedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_router, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(reservations, "EXPIRY", 0.0)
    kv = router(runtime)
    await kv.best_worker(PROMPT, request_id="forgotten")
    async with asyncio.timeout(PATIENCE):
        while any(row["potential_decode_blocks"] for row in await kv.get_potential_loads([])):
            await asyncio.sleep(0.01)
    await kv.free("forgotten")


async def test_two_that_book_the_same_id_at_once_are_told_apart(
    mockers: dict[int, Mocker], runtime: DistributedRuntime
) -> None:
    kv = router(runtime)
    both = await asyncio.gather(*[kv.best_worker(PROMPT, request_id="a") for _ in range(2)], return_exceptions=True)
    assert sorted(type(one).__name__ for one in both) == ["ValueError", "tuple"]
    await kv.free("a")
    assert not any(row["potential_decode_blocks"] for row in await kv.get_potential_loads([]))


async def test_a_request_may_weigh_overlap_otherwise(mockers: dict[int, Mocker], runtime: DistributedRuntime) -> None:
    kv = router(runtime)
    home, away = mockers
    await tokens(await kv.generate(PROMPT, stop_conditions={"max_tokens": 1}, worker_id=home))
    await until_known(kv, home, 10)
    await kv.best_worker([7] * 16, request_id="busy", router_config_override=None)
    anywhere = {"overlap_score_weight": 0, "router_temperature": 50}
    chosen = {(await kv.best_worker(PROMPT, anywhere))[0] for _ in range(99)}
    assert chosen == {home, away}
    stream = await kv.generate(PROMPT, "", {"max_tokens": 2}, router_config_override={"router_temperature": 0})
    assert len(await tokens(stream)) == 2
    for wrong, named in (({"weight": 1}, "weight"), ({"router_temperature": "hot"}, "router_temperature")):
        with pytest.raises(InvalidArgument, match=named):
            await kv.best_worker(PROMPT, wrong)
    with pytest.raises(InvalidArgument, match="temperature"):
        await kv.best_worker(PROMPT, {"router_temperature": -1})


async def test_a_request_that_weighs_otherwise_passes_over_who_cannot_be_reached(
    local: Local, mockers: dict[int, Mocker], runtime: DistributedRuntime
) -> None:
    kv = router(runtime)
    home, away = mockers
    await tokens(await kv.generate(PROMPT, stop_conditions={"max_tokens": 1}, worker_id=home))
    await until_known(kv, home, 10)
    path = f"ns/backend/generate/{home:x}"
    route = local.hub.routes.pop(path)
    try:
        told = {"router_temperature": 0}
        assert len(await tokens(await kv.generate(PROMPT, "", {"max_tokens": 2}, router_config_override=told))) == 2
        assert (await kv.best_worker(PROMPT, told, request_id="a"))[0] == away
    finally:
        local.hub.routes[path] = route


async def test_what_is_only_booked_sends_nothing_to_anybody(local: Local, runtime: DistributedRuntime) -> None:
    large = MockerArgs(block_size=4, num_gpu_blocks=4096, speedup_ratio=0)
    async with AsyncExitStack() as stack:
        mockers = [await stack.enter_async_context(Mocker(NETWORK, local, large)) for _ in range(6)]
        kv = router(runtime)
        for at in range(4):
            await kv.best_worker([*range(2000), at], request_id=str(at))
        # Whatever was sent to a worker came before this, and has left its blocks.
        for mocker in mockers:
            await tokens(await kv.generate(PROMPT, "", {"max_tokens": 1}, worker_id=mocker.worker_id))
            assert len(mocker.cached()) == 10


async def test_who_is_busy_or_leaves_is_not_said_to_be_the_best(
    local: Local, mockers: dict[int, Mocker], runtime: DistributedRuntime
) -> None:
    kv = router(runtime, active_decode_blocks_threshold=0.03, overlap_score_weight=9)
    home, away = mockers
    await tokens(await kv.generate(PROMPT, stop_conditions={"max_tokens": 1}, worker_id=home))
    await until_known(kv, home, 10)
    assert (await kv.best_worker(PROMPT, request_id="a"))[0] == home
    await kv.mark_prefill_complete("a")
    assert (await kv.best_worker(PROMPT))[0] == away
    assert len(await kv.get_potential_loads(PROMPT)) == 2
    await kv.free("a")
    assert (await kv.best_worker(PROMPT))[0] == home
    route = local.hub.routes[f"ns/backend/generate/{home:x}"]
    route.open = False
    assert (await kv.best_worker(PROMPT))[0] == away
    assert len((await kv.get_overlap_scores(PROMPT))["workers"]) == 2
    route.open = True


async def test_all_settings_of_the_router_can_be_given(mockers: dict[int, Mocker], runtime: DistributedRuntime) -> None:
    kv = router(runtime, active_prefill_tokens_threshold=39, router_copy_prefixes=False, router_queue_policy="wspt")
    for name in ("a", "b"):
        await kv.best_worker(PROMPT, request_id=name, router_config_override={"overlap_score_weight": 0})
    with pytest.raises(ResourceExhausted):
        await kv.best_worker(PROMPT, request_id="c")
    settings = {field for field in RoutingConfig.__struct_fields__ if field != "mode"}
    own = KvRouterConfig.__struct_fields__.index("overlap_score_credit")
    assert own == len(settings)


async def test_wrong_input_is_refused_by_name(mockers: dict[int, Mocker], runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("ns.backend.generate")
    with pytest.raises(ValueError, match="block_size"):
        KvRouter(endpoint, 0)
    with pytest.raises(ValueError, match="kv-overlap-score-weight"):
        KvRouter(endpoint, 4, KvRouterConfig(overlap_score_weight=-1))
    kv = router(runtime)
    with pytest.raises(InvalidArgument, match="token_ids"):
        await kv.generate_from_request({"model": "mock"})
    with pytest.raises(InvalidArgument, match="token_ids"):
        await kv.best_worker(["a"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="no instance 5"):
        await kv.generate(PROMPT, worker_id=5)


async def test_nobody_there_is_unavailable(runtime: DistributedRuntime) -> None:
    with pytest.raises(Unavailable):
        await router(runtime).best_worker(PROMPT)


def test_block_hashes_are_those_of_the_events() -> None:
    assert compute_block_hash_for_seq([1, 2, 3, 4, 5], 4) == [14643705804678351452]
    assert compute_block_hash_for_seq([1, 2, 3, 4], 4, lora_name="my-lora") == [15671544057904749233]
    with pytest.raises(ValueError, match="kv_block_size"):
        compute_block_hash_for_seq([1, 2, 3, 4], 0)


async def test_a_card_counts_whenever_it_comes_and_changes(
    local: Local, runtime: DistributedRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async def nothing(request: Any) -> AsyncIterator[Any]:
        yield request

    async with DistributedRuntime(config=NETWORK, local=local) as worker:
        endpoint = worker.endpoint("ns.backend.generate")
        serving = asyncio.create_task(endpoint.serve_endpoint(nothing))
        client = await runtime.endpoint("ns.backend.generate").client()
        await client.wait_for_instances()
        standalone = StandaloneRouter(runtime, EndpointId("ns", "backend", "generate"), RoutingConfig(mode="kv"))
        starting = asyncio.create_task(standalone.start())

        async def tell(block_size: int, ranks: int) -> None:
            size = ModelRuntimeConfig(data_parallel_size=ranks)
            card = ModelCard(name="m", model_type=0, kv_cache_block_size=block_size, runtime_config=size)
            await worker.discovery.put(card_key(endpoint.id, worker.instance_id), msgspec.json.encode(card))

        await tell(0, 1)
        async with asyncio.timeout(PATIENCE):
            while "ignoring the record" not in caplog.text:
                await asyncio.sleep(0.01)
            assert not starting.done()
            for ranks in (2, 3):
                await tell(8, ranks)
                await starting
                while len(standalone.core.peek(prompt(PROMPT)).fleet.workers) != ranks:
                    await asyncio.sleep(0.01)
        assert standalone.block_size == 8
        worker.shutdown()
        await serving
        await standalone.close()


async def test_the_service_takes_its_block_size_from_the_card_and_answers_all_three(
    local: Local, mockers: dict[int, Mocker], runtime: DistributedRuntime
) -> None:
    host = DistributedRuntime(config=NETWORK, local=local)
    standalone = StandaloneRouter(host, EndpointId("ns", "backend", "generate"), RoutingConfig(mode="kv"))
    await standalone.start()
    assert standalone.block_size == 4
    found = asyncio.Event()
    serving = asyncio.create_task(serve_router(host, "ns", standalone, found.set))
    await found.wait()
    generate, best, scores = [
        await runtime.endpoint(f"ns.router.{name}").client()
        for name in ("generate", "best_worker_id", "get_overlap_scores")
    ]
    await asyncio.gather(*[client.wait_for_instances() for client in (generate, best, scores)])

    async def one(client: Any, request: Any) -> Any:
        (item,) = [item async for item in await client.random(request, annotated=False)]
        return item

    request = {"token_ids": PROMPT, "stop_conditions": {"max_tokens": 5}}
    assert len(await tokens(await generate.random(request, annotated=False))) == 5
    async with asyncio.timeout(PATIENCE):
        while not any(row["device_blocks"] == 10 for row in (await one(scores, {"token_ids": PROMPT}))["workers"]):
            await asyncio.sleep(0.01)
    told = await one(scores, PROMPT)
    assert (told["block_size"], told["num_blocks"]) == (4, 10)
    (home,) = [row["worker_id"] for row in told["workers"] if row["device_blocks"]]
    assert await one(best, PROMPT) == await one(best, {"token_ids": PROMPT}) == home
    wrong: Any
    for wrong in ({"tokens": []}, {"token_ids": "a"}, 5, {"token_ids": PROMPT, "router_config_override": {"x": 1}}):
        with pytest.raises(InvalidArgument):
            await one(best, wrong)
    override = {**request, "router_config_override": {"overlap_score_weight": 0, "router_temperature": 50}}
    chosen = set()
    for _ in range(99):
        await tokens(await generate.random(override, annotated=False))
        chosen.add(standalone.core.decisions[-1].worker_id)
    assert chosen == set(mockers)
    with pytest.raises(InvalidArgument, match="hot"):
        await tokens(await generate.random({**request, "router_config_override": {"hot": 1}}, annotated=False))
    # A caller that leaves is told to the worker, and its booking is given back.
    endless = await generate.random({"token_ids": PROMPT, "stop_conditions": {"max_tokens": 900}}, annotated=False)
    await anext(endless)
    await endless.aclose()
    async with asyncio.timeout(PATIENCE):
        while standalone.core.peek(prompt(PROMPT)).loads.requests != [0, 0]:
            await asyncio.sleep(0.01)
    host.shutdown()
    await serving
    await standalone.close()
    await host.close()
