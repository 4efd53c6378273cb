"""The steps that a mocker reports are those it computes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dynamo.engines.mocker import MockerArgs, MockerEngine, PolynomialTiming
from dynamo.lab.simulate.virtual_time import run
from dynamo.protocols.engine import PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledRequestMetrics
from support.sinks import Kept

Step = tuple[int, float, ScheduledRequestMetrics, QueuedRequestMetrics]


def steps_of(args: MockerArgs, requests: list[PreprocessedRequest]) -> tuple[MockerEngine, list[Step]]:
    """The steps of requests that come together."""
    steps: list[Step] = []

    async def work() -> MockerEngine:
        engine = MockerEngine(args)
        await engine.start()
        engine.on_steps(lambda *step: steps.append(step))
        sinks = [Kept() for _ in requests]
        for request, sink in zip(requests, sinks, strict=True):
            engine.generate(request, sink)
        for sink in sinks:
            await sink.done
        await engine.close()
        return engine

    return run(work()), steps


def request(prompt: list[int], answer: int, **fields: Any) -> PreprocessedRequest:
    return PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=answer), **fields)


def some(count: int, seed: int, **fields: Any) -> list[PreprocessedRequest]:
    draw = random.Random(seed)
    return [
        request([draw.randrange(9) for _ in range(draw.randrange(1, 400))], draw.randrange(1, 40), **fields)
        for _ in range(count)
    ]


@pytest.mark.parametrize("blocks", [4096, 30])
def test_each_step_takes_as_long_as_its_numbers_say(blocks: int) -> None:
    args = MockerArgs(block_size=16, num_gpu_blocks=blocks, max_num_batched_tokens=256, watermark=0.0)
    requests = some(40, 1)
    engine, steps = steps_of(args, requests)
    timing = PolynomialTiming(args)
    for rank, seconds, scheduled, _ in steps:
        tokens, decoding, context = (
            scheduled.sum_prefill_tokens,
            scheduled.num_decode_requests,
            scheduled.sum_decode_kv_tokens,
        )
        assert rank == 0
        assert seconds == pytest.approx(timing.prefill(tokens) + timing.decode(decoding, context))
    load = engine.load()[0]
    assert bool(load.preemptions) == (blocks == 30)
    if not load.preemptions:
        prompts = sum(len(each.token_ids) for each in requests)
        assert sum(step[2].sum_prefill_tokens for step in steps) == prompts - load.prefix_hit_tokens
    assert any(step[3].num_decode_requests for step in steps) == bool(load.preemptions)


def test_no_step_of_a_fast_engine_is_folded_into_another() -> None:
    _, steps = steps_of(MockerArgs(speedup_ratio=1e6), [request([1, 2, 3], 500)])
    assert [step[2].sum_decode_kv_tokens for step in steps] == [0, *range(4, 503)]


def test_prompts_that_wait_are_counted_with_their_lengths() -> None:
    args = MockerArgs(max_num_seqs=2, enable_prefix_caching=False)
    _, steps = steps_of(args, [request([1] * length, 2) for length in (10, 20, 30, 50)])
    first, _, third = [queued for _, _, _, queued in steps][:3]
    assert first == QueuedRequestMetrics(num_prefill_requests=2, sum_prefill_tokens=80, var_prefill_length=100.0)
    assert third == QueuedRequestMetrics()


def test_a_cached_prefix_is_read_and_not_computed() -> None:
    args = MockerArgs(block_size=16, max_num_seqs=1)
    _, steps = steps_of(args, [request([7] * 64, 1), request([7] * 70, 1)])
    assert [(step[2].sum_prefill_tokens, step[2].sum_prefill_kv_tokens) for step in steps] == [(64, 0), (6, 64)]


def test_ranks_report_their_own_requests_and_the_time_of_the_slowest() -> None:
    args = MockerArgs(dp_size=2, enable_prefix_caching=False)
    prompts = [request([1] * 10, 1, routing=Routing(dp_rank=0)), request([1] * 900, 1, routing=Routing(dp_rank=1))]
    _, steps = steps_of(args, prompts)
    assert [(rank, scheduled.sum_prefill_tokens) for rank, _, scheduled, _ in steps] == [(0, 10), (1, 900)]
    assert [seconds for _, seconds, _, _ in steps] == pytest.approx([PolynomialTiming(args).prefill(900)] * 2)
