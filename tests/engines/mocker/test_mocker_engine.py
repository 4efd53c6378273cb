from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Cleared, KvChange, Stored
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import DynamoException, EngineShutdown, InvalidArgument
from engines.mocker.mocker_world import answer_to


class Collector:
    """A sink that keeps what is pushed and signals its end."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pushes = 0
        self.last: EngineOutput | None = None
        self.error: DynamoException | None = None
        self.over = asyncio.Event()
        self.first = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        assert not self.over.is_set()
        self.ids += ids
        self.pushes += 1
        self.first.set()

    def item(self, value: Any) -> None:
        assert self.last is None
        self.last = value
        self.ids += value.token_ids

    def end(self) -> None:
        assert not self.over.is_set()
        self.over.set()

    def fail(self, error: DynamoException) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()


def request(prompt: list[int], max_tokens: int | None = 5, **fields: Any) -> PreprocessedRequest:
    return PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=max_tokens), **fields)


async def engine_with(**overrides: Any) -> MockerEngine:
    engine = MockerEngine(MockerArgs(**{"speedup_ratio": 1e6, "block_size": 4, **overrides}))
    await engine.start()
    return engine


async def answer(engine: MockerEngine, asked: PreprocessedRequest) -> Collector:
    sink = Collector()
    engine.generate(asked, sink)
    await sink.over.wait()
    return sink


async def test_the_last_output_carries_reason_and_usage() -> None:
    engine = await engine_with()
    prompt = list(range(10))
    await answer(engine, request(prompt))
    sink = await answer(engine, request(prompt))
    assert sink.ids == answer_to(prompt, 5).take(5)
    assert sink.last is not None
    assert sink.last.finish_reason == "length"
    usage = sink.last.completion_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 5, 15)
    assert usage.prompt_tokens_details == {"cached_tokens": 8}


async def test_many_requests_at_once_each_get_their_own_answer() -> None:
    engine = await engine_with(num_gpu_blocks=40, max_num_seqs=8)
    prompts = [[n, n + 1, n + 2] for n in range(50)]
    sinks = await asyncio.gather(*(answer(engine, request(prompt, 20)) for prompt in prompts))
    assert [sink.ids for sink in sinks] == [answer_to(prompt, 20).take(20) for prompt in prompts]
    assert engine.load()[0].kv_used_blocks == 0


async def test_at_a_model_s_pace_tokens_arrive_as_they_are_made() -> None:
    engine = await engine_with(speedup_ratio=1.0)
    sink = Collector()
    running = engine.generate(request([1, 2, 3], 5000), sink)
    await sink.first.wait()
    assert 0 < len(sink.ids) < 5000
    assert not sink.over.is_set()
    running.abort()
    await sink.over.wait()


async def test_a_sink_may_submit_the_next_request_when_its_own_ends() -> None:
    engine = await engine_with()
    over = asyncio.Event()
    ended = 0

    class Chained(Collector):
        def end(self) -> None:
            nonlocal ended
            ended += 1
            if ended == 100:
                over.set()
            elif ended < 50:
                engine.generate(request([ended]), Chained())
                engine.generate(request([ended]), Chained())

    engine.generate(request([0]), Chained())
    engine.generate(request([0]), Chained())
    await over.wait()


async def test_cancelling_ends_the_stream_and_frees_the_blocks() -> None:
    engine = await engine_with(speedup_ratio=1.0)
    sink, other = Collector(), Collector()
    running = engine.generate(request([1, 2, 3], 100_000), sink)
    await sink.first.wait()
    assert not engine.quiet()
    running.abort()
    assert engine.quiet()
    assert sink.last is not None
    assert sink.last.finish_reason == "cancelled"
    assert sink.over.is_set()
    assert engine.load()[0].kv_used_blocks == 0
    running.abort()
    engine.generate(request([1, 2, 3], 1), other)
    await other.over.wait()
    assert other.error is None


async def test_stopping_fails_what_runs_so_that_it_can_go_elsewhere() -> None:
    engine = await engine_with(speedup_ratio=1.0)
    sink = Collector()
    engine.generate(request([1], 100_000), sink)
    await sink.first.wait()
    await engine.close()
    assert isinstance(sink.error, EngineShutdown)
    assert sink.error.migratable
    late = Collector()
    engine.generate(request([1]), late)
    assert isinstance(late.error, EngineShutdown)


async def test_a_sink_may_stop_the_engine() -> None:
    engine = await engine_with(speedup_ratio=1.0)
    stopping: list[asyncio.Task[None]] = []

    class Stopper(Collector):
        def tokens(self, ids: list[int]) -> None:
            super().tokens(ids)
            stopping.append(asyncio.ensure_future(engine.close()))

    sinks = [Stopper(), Stopper()]
    for sink in sinks:
        engine.generate(request([1], 100), sink)
    for sink in sinks:
        await sink.over.wait()
    await asyncio.gather(*stopping)
    assert all(isinstance(sink.error, EngineShutdown) for sink in sinks)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request([]), "the prompt is empty"),
        (request([-1]), "token ids must be integers"),
        (request([2**32]), "token ids must be integers"),
        (request(["a"]), "token ids must be integers"),  # type: ignore[list-item]
        (request([1] * 500), "does not fit"),
        (request([1], 0), "max_tokens must be at least 1"),
        (request([1], routing=Routing(dp_rank=3)), "dp_rank 3 is not one of the 1 ranks"),
    ],
)
async def test_a_request_that_cannot_be_answered_fails_with_the_reason(
    asked: PreprocessedRequest, message: str
) -> None:
    engine = await engine_with(num_gpu_blocks=100)
    sink = await answer(engine, asked)
    assert isinstance(sink.error, InvalidArgument)
    assert message in sink.error.message
    assert (await answer(engine, request([1]))).error is None


async def test_a_sink_that_raises_loses_only_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    engine = await engine_with(speedup_ratio=100.0)

    class Broken(Collector):
        def tokens(self, ids: list[int]) -> None:
            raise OSError("connection lost")

    engine.generate(request([1], 50), Broken())
    sink = await answer(engine, request([2], 50))
    assert len(sink.ids) == 50
    assert "a sink refused its tokens" in caplog.text
    assert engine.load()[0].kv_used_blocks == 0


async def test_events_are_told_per_rank_before_the_tokens() -> None:
    told: list[tuple[int, list[KvChange]]] = []
    engine = MockerEngine(MockerArgs(speedup_ratio=1e6, block_size=4, dp_size=2))
    engine.on_kv_events(lambda rank, changes: told.append((rank, changes)))
    await engine.start()
    await answer(engine, request(list(range(4)), 1, routing=Routing(dp_rank=1)))
    assert told == [(1, [Stored(prompt_hashes([0, 1, 2, 3], 4))])]
    assert await engine.clear_cache()
    assert [rank for rank, _ in told[1:]] == [0, 1]


async def test_what_was_stored_before_the_cache_was_cleared_is_told_before() -> None:
    told: list[type[KvChange]] = []
    engine = MockerEngine(MockerArgs(block_size=4))
    engine.on_kv_events(lambda _, changes: told.extend(map(type, changes)))
    await engine.start()
    sink = Collector()
    engine.generate(request(list(range(4)), 1), sink)
    while engine.load()[0].waiting:
        await asyncio.sleep(0)
    assert not sink.over.is_set()
    assert await engine.clear_cache()
    await sink.over.wait()
    assert told == [Stored, Cleared]


async def test_what_is_due_together_arrives_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy the machine: else a turn of the loop ends when it has taken long.
    monkeypatch.setattr("dynamo.engines.mocker.engine._TURN", math.inf)
    engine = await engine_with(max_num_batched_tokens=16)
    sinks = [Collector() for _ in range(8)]
    for index, sink in enumerate(sinks):
        engine.generate(request([index] * 10, 8), sink)
    await asyncio.gather(*(sink.over.wait() for sink in sinks))
    assert [len(sink.ids) for sink in sinks] == [8] * 8
    assert sum(sink.pushes for sink in sinks) < 8


async def test_adapters_and_salts_do_not_share_prefixes() -> None:
    engine = await engine_with()
    prompt = list(range(10))
    cached = []
    for routing in (None, Routing(lora_name="a"), Routing(cache_salt="s"), Routing(lora_name="a")):
        sink = await answer(engine, request(prompt, routing=routing))
        assert sink.last is not None
        assert sink.last.completion_usage is not None
        cached.append(sink.last.completion_usage.prompt_tokens_details)
    assert cached == [{"cached_tokens": 0}] * 3 + [{"cached_tokens": 8}]


async def test_a_prefill_worker_makes_one_token_to_hand_over() -> None:
    engine = await engine_with(disaggregation_mode="prefill")
    sink = await answer(engine, request(list(range(10)), 50))
    assert len(sink.ids) == 1
    assert sink.last is not None
    assert sink.last.finish_reason == "length"


async def test_starting_says_what_a_router_should_know() -> None:
    engine = MockerEngine(MockerArgs(num_gpu_blocks=7, max_num_seqs=3, dp_size=2, startup_time=0.001))
    config = await engine.start()
    assert (config.total_kv_blocks, config.max_num_seqs, config.data_parallel_size) == (7, 3, 2)
    assert config.max_num_batched_tokens == 8192
