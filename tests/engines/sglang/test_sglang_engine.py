"""The SGLang engine over a stand-in: deltas, ends, aborts, log probabilities, KV events, load, death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sglang.srt.entrypoints.engine import Engine as StandIn
from sglang.srt.managers.scheduler import REFUSED

from dynamo.engines.base import EngineError, RankLoad
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.engines.sglang.engine import _address
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Tier
from dynamo.model import LocalModel, bundled
from dynamo.process.threads import in_thread
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.protocols.errors import EngineShutdown, InvalidArgument
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
        engines.append(make_engine("sglang", EngineSpec(model=model, model_name="m", arguments=list(flags), **fields)))
        return engines[-1]

    yield made
    for engine in engines:
        await engine.close()
    StandIn.started.clear()


@pytest.fixture
async def engine(make: Make) -> Any:
    engine = make()
    await engine.start()
    return engine


def request(*ids: int, tokens: int | None = 4, **fields: Any) -> PreprocessedRequest:
    stops = fields.pop("stop_conditions", StopConditions(max_tokens=tokens))
    return PreprocessedRequest(token_ids=list(ids), stop_conditions=stops, **fields)


async def answer(engine: Any, asked: PreprocessedRequest) -> Kept:
    sink = Kept()
    engine.generate(asked, sink)
    async with asyncio.timeout(PATIENCE):
        await sink.done
    return sink


async def test_it_reports_what_sglang_made_of_its_arguments(make: Make) -> None:
    info = await make("--grammar-backend", "xgrammar", context_length=128, kv_cache_block_size=8).start()
    assert (info.context_length, info.kv_cache_block_size, info.total_kv_blocks) == (128, 8, 128)
    assert (info.max_num_seqs, info.max_num_batched_tokens, info.guided_decoding) == (64, 16384, True)


async def test_tokens_arrive_as_deltas_and_the_last_has_the_reason_and_the_usage(engine: Any) -> None:
    sink = await answer(engine, request(*range(20)))
    assert sink.ids == [20, 21, 22, 23]
    assert len(sink.items) == 1
    assert (sink.last.finish_reason, sink.last.token_ids) == ("length", [23])
    again = await answer(engine, request(*range(20)))
    usage = again.last.completion_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 4, 24)
    assert usage.prompt_tokens_details == {"cached_tokens": 16}


async def test_a_stop_id_ends_the_answer_and_is_named(engine: Any) -> None:
    sink = await answer(engine, request(10, stop_conditions=StopConditions(stop_token_ids=[13])))
    assert sink.ids == [11, 12, 13]
    assert (sink.last.finish_reason, sink.last.stop_reason) == ("stop", 13)


async def test_many_requests_run_side_by_side(engine: Any) -> None:
    answers = await asyncio.gather(*[answer(engine, request(start, tokens=9)) for start in range(100, 132)])
    assert [sink.ids for sink in answers] == [list(range(start + 1, start + 10)) for start in range(100, 132)]
    await until(engine.quiet)


async def test_no_token_passes_the_tokenizer_manager_unless_it_has_to_see_every_output(make: Make) -> None:
    for flags, passed in (((), False), (("--skip-tokenizer-init",), False), (("--log-requests",), True)):
        engine = make(*flags)
        await engine.start()
        manager = StandIn.started[-1].tokenizer_manager
        seen: list[Any] = []
        generate = manager.generate_request

        async def chunks(*asked: Any, generate: Any = generate, seen: list[Any] = seen) -> AsyncIterator[Any]:
            async with contextlib.aclosing(generate(*asked)) as given:
                async for chunk in given:
                    seen.append(chunk)
                    yield chunk

        manager.generate_request = chunks
        shown = OutputOptions(logprobs=2, prompt_logprobs=1)
        answers = [await answer(engine, request(5, 6, output_options=each)) for each in (OutputOptions(), shown)]
        assert [sink.ids for sink in answers] == [[7, 8, 9, 10]] * 2
        first = answers[1].items[0]
        assert [row and row[0].token_id for row in first.prompt_logprobs] == [None, 6]
        assert [len(item.top_logprobs[0]) for item in answers[1].items] == [2] * 4
        assert bool(seen) is passed
        await until(engine.quiet)
        assert not manager.rid_to_state


async def test_the_models_own_end_token_is_no_stop_of_the_clients(engine: Any) -> None:
    own = await answer(engine, request(1, tokens=9, eos_token_ids=[4]))
    hidden = await answer(engine, request(1, stop_conditions=StopConditions(max_tokens=9, stop_token_ids_hidden=[4])))
    asked = StopConditions(max_tokens=9, stop_token_ids=[4], stop_token_ids_hidden=[4])
    client = await answer(engine, request(1, stop_conditions=asked))
    assert [(each.ids, each.last.finish_reason) for each in (own, hidden, client)] == [([2, 3, 4], "stop")] * 3
    assert [each.last.stop_reason for each in (own, hidden, client)] == [None, None, 4]


async def test_a_seed_that_has_no_effect_is_logged_once(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        await answer(engine, request(1, sampling_options=SamplingOptions(seed=3)))
    assert [record.message for record in caplog.records if "seeds" in record.message] == [
        "without --enable-deterministic-inference seeds are accepted and have no effect"
    ]


async def test_a_deterministic_engine_refuses_what_it_would_die_of(make: Make) -> None:
    engine = make("--enable-deterministic-inference")
    await engine.start()
    sink = await answer(engine, request(1, sampling_options=SamplingOptions(min_p=0.5)))
    assert isinstance(sink.error, InvalidArgument)


async def test_log_probabilities_come_with_their_tokens(engine: Any) -> None:
    sink = await answer(engine, request(5, tokens=2, output_options=OutputOptions(logprobs=2)))
    assert [item.log_probs for item in sink.items] == [[-0.5], [-0.5]]
    rows = [[(top.token_id, top.logprob, top.rank) for top in item.top_logprobs[0]] for item in sink.items]
    assert rows == [[(6, -0.5, 2), (7, -0.25, 1)], [(7, -0.5, 2), (8, -0.25, 1)]]


async def test_a_sampled_token_outside_the_likeliest_is_shown_first_without_a_rank(engine: Any) -> None:
    sink = await answer(engine, request(5, tokens=1, output_options=OutputOptions(logprobs=1)))
    (row,) = sink.last.top_logprobs or []
    assert [(top.token_id, top.rank) for top in row] == [(6, None), (7, 1)]


async def test_log_probabilities_of_the_prompt_come_once(engine: Any) -> None:
    sink = await answer(engine, request(5, 6, tokens=2, output_options=OutputOptions(prompt_logprobs=0)))
    first, second = sink.items
    assert second.prompt_logprobs is None
    nothing, row = first.prompt_logprobs
    assert nothing is None
    assert [(top.token_id, top.logprob) for top in row] == [(6, -0.5)]


async def test_an_aborted_request_is_dropped_by_sglang(engine: Any) -> None:
    begun = asyncio.Event()
    sink = Kept(on_tokens=begun.set)
    running = engine.generate(request(1, tokens=None), sink)
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    running.abort()
    running.abort()
    assert sink.last.finish_reason == "cancelled"
    (llm,) = StandIn.started
    await until(engine.quiet)
    assert llm.tokenizer_manager.aborted == [llm.tokenizer_manager.requests[0].rid]
    assert not llm.tokenizer_manager.rid_to_state


async def test_a_request_aborted_before_it_reached_sglang_never_does(engine: Any) -> None:
    sink = Kept()
    engine.generate(request(1, tokens=None), sink).abort()
    assert sink.done.done()
    await until(engine.quiet)
    assert StandIn.started[0].tokenizer_manager.requests == []


@pytest.mark.parametrize("ids", [range(300), [1, REFUSED]], ids=["too long", "by the scheduler"])
async def test_what_sglang_refuses_is_the_clients_error(engine: Any, ids: list[int]) -> None:
    sink = await answer(engine, request(*ids))
    assert isinstance(sink.error, InvalidArgument)
    await until(engine.quiet)


async def test_a_sink_that_breaks_costs_only_its_own_request(engine: Any) -> None:
    class Broken(Kept):
        def tokens(self, ids: list[int]) -> None:
            raise RuntimeError("the reader is gone")

    broken = Broken()
    engine.generate(request(1, tokens=None), broken)
    assert (await answer(engine, request(1))).ids == [2, 3, 4, 5]
    await until(engine.quiet)
    assert broken.error is not None


async def test_what_replays_the_events_knows_the_cache(make: Make) -> None:
    engine = make(kv_cache_block_size=4)
    await engine.start()
    manager = StandIn.started[0].tokenizer_manager
    runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=Local())
    async with runtime:
        reader = await Reader().listen(runtime)
        serving = asyncio.create_task(serve_engine(runtime.endpoint("ns.backend.generate"), engine))
        await in_thread(manager.events.wait_for_listener)
        prompt = list(range(20))
        await answer(engine, request(*prompt[:9]))
        await answer(engine, request(*prompt))
        blocks = await reader.until(runtime.instance_id, 1)
        hashes = prompt_hashes(prompt, 4)
        assert blocks == {(Tier.Device, block) for block in hashes}
        manager.events.remove(2)
        assert await reader.until(runtime.instance_id, 2) == {(Tier.Device, block) for block in hashes[:3]}
        assert await engine.clear_cache()
        assert await reader.until(runtime.instance_id, 3) == set()
        runtime.shutdown()
        await serving


async def test_the_cache_is_not_cleared_under_a_running_request(engine: Any) -> None:
    begun = asyncio.Event()
    running = engine.generate(request(1, tokens=None), Kept(on_tokens=begun.set))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    assert not await engine.clear_cache()
    running.abort()


async def test_load_is_reported_when_it_changes(engine: Any) -> None:
    loads: list[RankLoad] = []
    running = engine.generate(request(*range(20), tokens=None), Kept())
    engine.on_load(loads.append)
    await until(lambda: loads)
    assert (loads[0].kv_used_blocks, loads[0].kv_total_blocks) == (2, 64)
    running.abort()
    await until(lambda: loads[-1].kv_used_blocks == 0)
    assert len(loads) == 2


async def test_tokens_that_were_guessed_are_reported_with_the_load(make: Make) -> None:
    loads: list[RankLoad] = []
    engine = make("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5")
    await engine.start()
    engine.on_load(loads.append)
    sink = Kept()
    engine.generate(request(1, tokens=6), sink)
    await sink.done
    await until(lambda: loads and loads[-1].draft_tokens)
    assert (loads[-1].draft_tokens, loads[-1].accepted_tokens) == (6 * 4, 6 * 2)


async def test_a_process_that_dies_fails_every_stream_so_that_it_moves(engine: Any) -> None:
    reasons: list[str] = []
    engine.on_death(reasons.append)
    begun = asyncio.Event()
    sinks = [Kept(on_tokens=begun.set), Kept()]
    for sink in sinks:
        engine.generate(request(1, tokens=None), sink)
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        os.kill(os.getpid(), signal.SIGQUIT)  # as SGLang's watchdog does
        for sink in sinks:
            await sink.done
    assert all(isinstance(sink.error, EngineShutdown) for sink in sinks)
    assert reasons == ["one of its processes failed"]
    late = Kept()
    engine.generate(request(1), late)
    assert isinstance(late.error, EngineShutdown)


async def test_closing_fails_what_runs_and_shuts_sglang_down_where_it_was_started(engine: Any) -> None:
    sink = Kept()
    engine.generate(request(1, tokens=None), sink)
    await engine.close()
    await engine.close()
    assert isinstance(sink.error, EngineShutdown)
    assert StandIn.started[0].was_shut_down


async def test_a_failed_start_is_one_line_and_can_be_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "fails", "Rank 0 scheduler died\nand more")
    engine = make()
    with pytest.raises(EngineError, match=r"SGLang could not start: Rank 0 scheduler died$"):
        await engine.start()
    await engine.close()


async def test_sglang_leaves_our_logging_as_it_was(make: Make) -> None:
    before = list(logging.getLogger().handlers)
    await make().start()
    assert logging.getLogger().handlers == before


async def test_a_follower_takes_no_requests_and_dies_with_its_scheduler(make: Make) -> None:
    follower = make(num_nodes=2, node_rank=1, leader_addr="127.0.0.1:5000")
    assert (await follower.start()).follower
    sink = Kept()
    follower.generate(request(1), sink)
    assert isinstance(sink.error, EngineShutdown)
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    follower.on_death(died.set_result)
    StandIn.started[0].processes[0].kill()
    async with asyncio.timeout(PATIENCE):
        assert "the leader left" in await died


def test_each_rank_has_an_address_of_its_own() -> None:
    assert _address("tcp://*:5557", 2) == "tcp://127.0.0.1:5559"
    assert _address("ipc:///x/inproc-events", 1) == "ipc:///x/inproc-events_dp1"
    assert _address("ipc:///x/inproc-events", 0) == "ipc:///x/inproc-events"
