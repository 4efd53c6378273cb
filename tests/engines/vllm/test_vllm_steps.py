"""A real vLLM reports what its scheduler put into each step."""

from __future__ import annotations

from typing import Any

from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import vllm_from_spec
from dynamo.model import LocalModel, bundled
from dynamo.protocols.forward_pass import QueuedRequestMetrics
from dynamo.settings.worker import StepTraceSettings
from engines.vllm.test_vllm_engine import request
from support.sinks import Kept
from support.waiting import until

ARGUMENTS = ["--kv-cache-memory-bytes", "64M", "--max-num-seqs", "2", "--max-num-batched-tokens", "64"]


async def test_steps_add_up_to_what_was_asked() -> None:
    model = LocalModel(source="tiny", path=bundled())
    spec = EngineSpec(
        model=model,
        model_name="tiny",
        context_length=512,
        arguments=ARGUMENTS,
        step_trace=StepTraceSettings(enabled=True),
    )
    engine: Any = vllm_from_spec(spec)
    steps: list[Any] = []
    try:
        await engine.start()
        engine.on_steps(lambda *step: steps.append(step))
        sinks = [Kept() for _ in range(3)]
        for sink, length in zip(sinks, (100, 20, 30), strict=True):
            engine.generate(request([300 + length] * length), sink)
        for sink in sinks:
            await sink.done
            assert len(sink.ids) == 8
        # Each prompt gives the first token of its answer; the other seven are decoded.
        await until(lambda: sum(step[2].num_decode_requests for step in steps) >= 3 * 7)
    finally:
        await engine.close()
    scheduled = [step[2] for step in steps]
    assert sum(one.sum_prefill_tokens for one in scheduled) == 150
    assert max(one.sum_prefill_tokens for one in scheduled) <= 64
    assert sum(one.num_decode_requests for one in scheduled) == 3 * 7
    assert sum(one.sum_decode_kv_tokens for one in scheduled) == sum(
        length + answered for length in (100, 20, 30) for answered in range(1, 8)
    )
    chunked = [one for one in scheduled if one.sum_prefill_kv_tokens]
    assert chunked[0].sum_prefill_kv_tokens in (32, 64)
    assert any(queued.num_prefill_requests == 1 and queued.sum_prefill_tokens == 30 for *_, queued in steps)
    assert steps[-1][3] == QueuedRequestMetrics()
    assert all(rank == 0 and 0 < seconds < 60 for rank, seconds, _, _ in steps)
