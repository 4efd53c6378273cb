"""The TensorRT-LLM engine over a stand-in: deltas, ends, aborts, log probabilities, KV events, load, death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tensorrt_llm import LLM
from tensorrt_llm._tensorrt_engine import LLM as CompiledLLM
from tensorrt_llm.llmapi.llm import FATAL, REFUSED

from dynamo.engines.base import EngineError, RankLoad
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Tier
from dynamo.model import LocalModel, bundled
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import EngineShutdown, InvalidArgument, Unknown
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.worker import serve_engine
from support.kv_reader import Reader
from support.sinks import Kept
from support.waiting import PATIENCE, until

Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    engines: list[Any] = []

    def made(*flags: str, **fields: Any) -> Any:
        model = LocalModel(source="tiny", path=bundled())
        engines.append(make_engine("trtllm", EngineSpec(model=model, model_name="m", arguments=list(flags), **fields)))
        return engines[-1]

    yield made
    for engine in engines:
        await engine.close()
    LLM.started.clear()


@pytest.fixture
async def engine(make: Make) -> Any:
    engine = make(kv_cache_block_size=4)
    await engine.start()
    return engine


def request(*ids: int, tokens: int | None = 4, **fields: Any) -> PreprocessedRequest:
    stops = fields.pop("stop_conditions", StopConditions(max_tokens=tokens))
    return PreprocessedRequest(token_ids=list(ids), stop_conditions=stops, **fields)


async def test_a_compiled_engine_is_run_by_the_class_for_it(tmp_path: Path) -> None:
    built = {"max_seq_len": 128, "plugin_config": {"tokens_per_block": 64}}
    (tmp_path / "config.json").write_text(json.dumps({"build_config": built}))
    (tmp_path / "rank0.engine").touch()
    model, described_by = LocalModel(source="m", path=tmp_path), LocalModel(source="tiny", path=bundled())
    engine = make_engine("trtllm", EngineSpec(model=model, model_config=described_by, model_name="m"))
    info = await engine.start()
    loads: list[RankLoad] = []
    engine.on_load(loads.append)  # type: ignore[attr-defined]
    kept = await answer(engine, request(5))
    await until(lambda: loads)
    await engine.close()
    assert (info.context_length, info.kv_cache_block_size, kept.ids) == (128, 64, [6, 7, 8, 9])
    assert isinstance(LLM.started.pop(), CompiledLLM)


async def answer(engine: Any, asked: PreprocessedRequest) -> Kept:
    sink = Kept()
    engine.generate(asked, sink)
    async with asyncio.timeout(PATIENCE):
        await sink.done
    return sink


async def test_it_reports_its_limits(make: Make) -> None:
    info = await make("--max-batch-size", "8", "--max-num-tokens", "99", context_length=64).start()
    assert (info.context_length, info.kv_cache_block_size, info.max_num_seqs) == (64, 32, 8)
    assert (info.max_num_batched_tokens, info.data_parallel_size, info.guided_decoding) == (99, 1, False)


async def test_ranks_of_attention_are_data_parallel(make: Make) -> None:
    info = await make("--enable-attention-dp", tensor_parallel_size=4).start()
    assert info.data_parallel_size == 4


async def test_tokens_arrive_as_deltas_and_the_last_has_the_reason_and_the_usage(engine: Any) -> None:
    sink = await answer(engine, request(1, 2, 10))
    assert sink.ids == [11, 12, 13, 14]
    assert (len(sink.items), sink.last.finish_reason, sink.last.token_ids) == (1, "length", [14])
    usage = sink.last.completion_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 4)


async def test_the_first_end_id_and_every_other_stop_id_end_the_answer(engine: Any) -> None:
    first = await answer(engine, request(10, stop_conditions=StopConditions(max_tokens=9), eos_token_ids=[12, 20]))
    second = await answer(engine, request(17, stop_conditions=StopConditions(max_tokens=9), eos_token_ids=[12, 20]))
    assert (first.ids, first.last.finish_reason) == ([11, 12], "stop")
    assert (second.ids, second.last.finish_reason, second.last.stop_reason) == ([18, 19], "stop", 20)


async def test_many_requests_run_side_by_side(engine: Any) -> None:
    answers = await asyncio.gather(*[answer(engine, request(start, tokens=9)) for start in range(100, 132)])
    assert [sink.ids for sink in answers] == [list(range(start + 1, start + 10)) for start in range(100, 132)]
    await until(engine.quiet)


@pytest.mark.parametrize(
    ("shown", "row"), [(0, [(6, -0.5, 2)]), (1, [(6, -0.5, 2), (7, -0.25, 1)]), (2, [(6, -0.5, 2), (7, -0.25, 1)])]
)
async def test_log_probabilities_come_with_their_tokens(engine: Any, shown: int, row: list[Any]) -> None:
    sink = await answer(engine, request(5, tokens=2, output_options=OutputOptions(logprobs=shown)))
    assert [item.log_probs for item in sink.items] == [[-0.5], [-0.5]]
    assert [(top.token_id, top.logprob, top.rank) for top in sink.items[0].top_logprobs[0]] == row


async def test_an_aborted_request_is_dropped_by_the_engine(engine: Any) -> None:
    begun = asyncio.Event()
    sink = Kept(on_tokens=begun.set)
    running = engine.generate(request(1, tokens=10_000), sink)
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    running.abort()
    running.abort()
    assert sink.last.finish_reason == "cancelled"
    assert not LLM.started[0].running
    await until(engine.quiet)


async def test_a_salt_keeps_prefixes_apart(engine: Any) -> None:
    await answer(engine, request(1, routing=Routing(cache_salt="tenant")))
    assert LLM.started[0].asked[0]["cache_salt"] == "tenant"


async def test_a_request_that_fails_costs_no_other(engine: Any) -> None:
    failed, fine = await asyncio.gather(answer(engine, request(REFUSED)), answer(engine, request(1)))
    assert isinstance(failed.error, Unknown)
    assert fine.ids == [2, 3, 4, 5]


async def test_what_is_wrong_with_a_request_is_the_clients_error(engine: Any) -> None:
    sink = await answer(engine, request(1, routing=Routing(lora_name="none")))
    assert isinstance(sink.error, InvalidArgument)
    assert engine.quiet()


async def test_what_replays_the_events_knows_the_cache(engine: Any) -> None:
    llm = LLM.started[0]
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=Local())
    async with runtime:
        reader = await Reader().listen(runtime)
        serving = asyncio.create_task(serve_engine(runtime.endpoint("ns.backend.generate"), engine))
        prompt = list(range(18))
        hashes = [(Tier.Device, block) for block in prompt_hashes(prompt[:16], 4)]
        await answer(engine, request(*prompt[:9]))
        assert await reader.until(runtime.instance_id, 0) == set(hashes[:2])  # the ninth token fills no block
        await answer(engine, request(*prompt))
        assert await reader.until(runtime.instance_id, 1) == set(hashes)
        llm.say({"type": "updated", "block_hash": llm.names(prompt)[0], "cache_level": {}, "priority": {}})
        llm.say({"type": "removed", "block_hashes": llm.names(prompt)[2:4]}, window_size=128)  # a narrower window
        llm.say({"type": "removed", "block_hashes": llm.names(prompt)[3:4]})
        await answer(engine, request(1))
        assert await reader.until(runtime.instance_id, 2) == set(hashes[:3])
        llm.lose_an_event()
        await answer(engine, request(*prompt[:4]))
        assert await reader.until(runtime.instance_id, 4) == set(hashes[:1])
        runtime.shutdown()
        await serving


async def test_malformed_events_make_the_cache_unknown_and_kill_nothing(engine: Any) -> None:
    changes: list[Any] = []
    engine.on_kv_events(lambda rank, changed: changes.extend((rank, type(change).__name__) for change in changed))
    half = {"event_id": 1, "data": {"type": "stored", "blocks": [{}]}, "window_size": 4096}
    for event in (None, {"data": 1}, half):
        LLM.started[0].events.put_nowait(event)
    await answer(engine, request(*range(8)))
    await until(lambda: (0, "Stored") in changes)
    assert changes[:3] == [(0, "Cleared")] * 3


async def test_load_is_reported_as_it_changes(engine: Any) -> None:
    loads: list[RankLoad] = []
    engine.on_load(loads.append)
    running = engine.generate(request(*range(20), tokens=10_000), Kept())
    await until(lambda: loads)
    assert (loads[0].kv_used_blocks, loads[0].kv_total_blocks) == (5, 64)
    running.abort()
    await answer(engine, request(1))
    await until(lambda: loads[-1].kv_used_blocks == 0)


async def test_an_engine_that_dies_fails_every_stream_so_that_it_moves(engine: Any) -> None:
    reasons: list[str] = []
    engine.on_death(reasons.append)
    other = Kept()
    engine.generate(request(1, tokens=10_000), other)
    dying = await answer(engine, request(FATAL))
    async with asyncio.timeout(PATIENCE):
        await other.done
    assert isinstance(dying.error, EngineShutdown)
    assert isinstance(other.error, EngineShutdown)
    assert reasons == ["the executor is gone"]
    late = await answer(engine, request(1))
    assert isinstance(late.error, EngineShutdown)


async def test_the_death_of_an_idle_engine_is_seen_where_its_load_is_asked_for(engine: Any) -> None:
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    engine.on_death(died.set_result)
    LLM.started[0].dead = True
    engine.on_load(lambda load: None)
    async with asyncio.timeout(PATIENCE):
        assert await died == "the executor is gone"


async def test_closing_fails_what_runs_and_shuts_the_engine_down(engine: Any) -> None:
    engine.on_load(lambda load: None)
    sink = Kept()
    engine.generate(request(1, tokens=10_000), sink)
    await engine.close()
    await engine.close()
    assert isinstance(sink.error, EngineShutdown)
    assert LLM.started[0].was_shut_down


async def test_a_failed_start_is_one_line_and_can_be_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "fails", "no GPU\nand more")
    engine = make()
    with pytest.raises(EngineError, match=r"TensorRT-LLM could not start: no GPU$"):
        await engine.start()
    await engine.close()
