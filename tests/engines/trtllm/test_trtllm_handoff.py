"""The hand-off in TensorRT-LLM's published form: context only, then generation only, with an opaque state between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec import structs
from tensorrt_llm import LLM
from tensorrt_llm.llmapi import DisaggregatedParams

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.engines.trtllm.handoff import take_role
from dynamo.model import LocalModel, bundled
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import PrefillResult
from dynamo.protocols.errors import ProtocolError
from support.asking import answer, asking

Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    engines: list[Any] = []

    def made(*flags: str) -> Any:
        model = LocalModel(source="tiny", path=bundled())
        engines.append(make_engine("trtllm", EngineSpec(model=model, model_name="m", arguments=list(flags))))
        return engines[-1]

    yield made
    for engine in engines:
        await engine.close()
    LLM.started.clear()


async def test_the_state_of_a_context_is_continued_from_byte_for_byte(make: Make) -> None:
    prefill, decode = make("--disaggregation-mode", "prefill"), make("--disaggregation-mode=decode")
    assert (await prefill.start()).worker_type is WorkerType.Prefill
    assert (await decode.start()).worker_type is WorkerType.Decode
    assert prefill.transfer == decode.transfer == "TensorRT-LLM by DEFAULT, KV in auto"
    request = asking([5, 6, 7], max_tokens=2, ignore_eos=True)
    offered = (await answer(prefill, prefill.prefilling(request))).last.disaggregated_params
    assert offered is not None
    travelled = json.loads(json.dumps(offered))
    result = PrefillResult(disaggregated_params=travelled)
    await answer(decode, decode.continuing(structs.replace(request, prefill_result=result)))
    first, second = LLM.started
    assert first.asked[0]["split"] == DisaggregatedParams(request_type="context_only")
    assert second.asked[0]["split"] == DisaggregatedParams(
        request_type="generation_only", first_gen_tokens=[8], ctx_request_id=17, opaque_state=b"\x00state\xff"
    )


async def test_a_request_of_both_halves_has_no_parameters_of_a_hand_off(make: Make) -> None:
    engine = make()
    await engine.start()
    assert (await answer(engine, asking([5, 6], max_tokens=1))).last.disaggregated_params is None
    assert LLM.started[0].asked[0]["split"] is None


@pytest.mark.parametrize("params", [{}, {"opaque_state": None}, {"opaque_state": 5}, {"kv_transfer_params": {}}])
async def test_an_answer_of_another_engine_is_not_continued_from(make: Make, params: dict[str, Any]) -> None:
    request = structs.replace(asking([5, 6]), prefill_result=PrefillResult(disaggregated_params=params))
    with pytest.raises(ProtocolError, match="has no opaque_state"):
        make("--disaggregation-mode", "decode").continuing(request)


async def test_a_damaged_state_is_not_continued_from(make: Make) -> None:
    damaged = PrefillResult(disaggregated_params={"opaque_state": "?"})
    with pytest.raises(ProtocolError, match="opaque_state cannot be read"):
        make("--disaggregation-mode", "decode").continuing(structs.replace(asking([5, 6]), prefill_result=damaged))


def test_the_role_is_taken_from_the_words_of_the_engine() -> None:
    assert take_role(["--max-batch-size", "4"]) == (WorkerType.Aggregated, ["--max-batch-size", "4"])
    words = ["--disaggregation-mode", "decode", "--max-batch-size=4"]
    assert take_role(words) == (WorkerType.Decode, ["--max-batch-size=4"])
    for wrong in (["--disaggregation-mode"], ["--disaggregation-mode=encode"]):
        with pytest.raises(EngineError, match="must be agg, prefill or decode"):
            take_role(wrong)
