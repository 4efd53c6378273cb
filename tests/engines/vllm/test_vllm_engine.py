"""A real vLLM with the bundled model, asked through the contract."""

from __future__ import annotations

import json
import os
import signal
from array import array
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio
from prometheus_client.core import Metric

from dynamo.engines.base import RankLoad
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import vllm_from_spec
from dynamo.model import HubConfig, LoadedModel, LocalModel, build_card, bundled, open_card
from dynamo.protocols.card import ModelType
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, Routing, SamplingOptions, StopConditions
from dynamo.protocols.errors import InvalidArgument
from support.sinks import Kept
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = LocalModel(source="tiny", path=bundled())
GREEDY = SamplingOptions(temperature=0.0)


class Vllm:
    """The engine, and what it reported."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.loads: list[RankLoad] = []

    async def ask(self, prompt: Any, **fields: Any) -> Kept:
        kept = Kept()
        self.engine.generate(request(prompt, **fields), kept)
        await kept.done
        return kept


def request(prompt: Any, **fields: Any) -> PreprocessedRequest:
    stops = fields.pop("stops", StopConditions(max_tokens=8, ignore_eos=True))
    return PreprocessedRequest(token_ids=prompt, stop_conditions=stops, **{"sampling_options": GREEDY, **fields})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm() -> AsyncIterator[Vllm]:
    spec = EngineSpec(model=MODEL, model_name="tiny", context_length=1024, arguments=["--kv-cache-memory-bytes", "64M"])
    running = Vllm(vllm_from_spec(spec))
    try:
        info = await running.engine.start()
        assert (info.context_length, info.kv_cache_block_size, info.guided_decoding) == (1024, 32, True)
        running.engine.on_load(running.loads.append)
        yield running
    finally:
        await running.engine.close()


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    card = build_card(MODEL, name="tiny", model_type=ModelType.Chat)
    return open_card(card, HubConfig(cache=MODEL.path, offline=True))


def question(loaded: LoadedModel, text: str) -> list[int]:
    return list(loaded.tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"))


async def test_tokens_arrive_step_by_step_and_the_end_with_its_usage(vllm: Vllm) -> None:
    kept = await vllm.ask([5, 6, 7])
    assert len(kept.ids) == 8
    assert len(kept.items) == 1, "all but the last step are bare tokens"
    assert kept.last.finish_reason == "length"
    usage = kept.last.completion_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 8, 11)


async def test_a_second_prompt_with_the_same_prefix_is_served_from_the_cache(vllm: Vllm) -> None:
    prompt = list(range(20, 120))
    first, second = [await vllm.ask(prompt) for _ in range(2)]
    other = await vllm.ask(prompt, routing=Routing(cache_salt="other"))
    cached = [kept.last.completion_usage.prompt_tokens_details for kept in (first, second, other)]  # type: ignore[union-attr]
    assert cached == [{"cached_tokens": 0}, {"cached_tokens": 96}, {"cached_tokens": 0}]
    assert first.ids == second.ids == other.ids


async def test_many_requests_at_once_get_the_answers_they_get_alone(vllm: Vllm) -> None:
    prompts = [[10 + at, 20, 30 + at] for at in range(32)]
    alone = [(await vllm.ask(prompt)).ids for prompt in prompts]
    together = [Kept() for _ in prompts]
    for prompt, kept in zip(prompts, together, strict=True):
        vllm.engine.generate(request(prompt), kept)
    for kept in together:
        await kept.done
    assert [kept.ids for kept in together] == alone


async def test_requests_with_the_options_of_an_earlier_one_keep_what_is_their_own(vllm: Vllm) -> None:
    prompts = [array("I", [5, 6, number]) for number in range(7, 11)]
    stops = StopConditions(max_tokens=5, ignore_eos=True)
    fresh = [(await vllm.ask(list(prompt), stops=stops)).ids for prompt in prompts]
    for routing in (None, Routing(cache_salt="salt", priority=3)):
        assert [(await vllm.ask(prompt, stops=stops, routing=routing)).ids for prompt in prompts] == fresh
    assert len((await vllm.ask(prompts[0])).ids) == 8, "another limit"
    for wrong in (array("I", [1 << 20]), array("I", [5] * 1024), array("I")):
        assert isinstance((await vllm.ask(wrong, stops=stops)).error, InvalidArgument)


async def test_log_probabilities_come_with_their_tokens(vllm: Vllm) -> None:
    kept = await vllm.ask([5, 6, 7], output_options=OutputOptions(logprobs=2, prompt_logprobs=1))
    first = kept.items[0]
    assert first.prompt_logprobs[0] is None
    assert [row[0].token_id for row in first.prompt_logprobs[1:]] == [6, 7]
    for item in kept.items:
        for id, logprob, top in zip(item.token_ids, item.log_probs, item.top_logprobs, strict=True):
            assert (top[0].token_id, top[0].logprob, top[0].rank) == (id, logprob, 1)
            assert len(top) == 2
    assert kept.ids == (await vllm.ask([5, 6, 7])).ids


async def test_a_stop_id_ends_the_answer_unless_it_is_too_short(vllm: Vllm) -> None:
    ids = (await vllm.ask([5, 6, 7])).ids
    stopped = await vllm.ask([5, 6, 7], stops=StopConditions(max_tokens=8, stop_token_ids=[ids[2]]))
    assert stopped.ids == ids[: ids.index(ids[2]) + 1]
    assert (stopped.last.finish_reason, stopped.last.stop_reason) == ("stop", ids[2])
    longer = await vllm.ask([5, 6, 7], stops=StopConditions(max_tokens=8, min_tokens=6, stop_token_ids=[ids[2]]))
    assert len(longer.ids) >= 6


async def test_a_seed_repeats_an_answer_and_each_choice_has_its_own(vllm: Vllm) -> None:
    sampling = SamplingOptions(temperature=2.0, seed=11)
    same, again, other = [
        (await vllm.ask([5, 6, 7], sampling_options=sampling, choice=choice)).ids for choice in (0, 0, 1)
    ]
    assert same == again != other


async def test_a_bias_forces_a_token(vllm: Vllm) -> None:
    kept = await vllm.ask([5, 6], sampling_options=SamplingOptions(temperature=0.0, logit_bias={"300": 100.0}))
    assert set(kept.ids) == {300}


@pytest.mark.parametrize(
    ("guidance", "is_right"),
    [
        ({"choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"regex": "[0-9]{4}"}, lambda text: text.isdigit() and len(text) == 4),
        ({"grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
        (
            {"json": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
            lambda text: json.loads(text)["n"] in (1, 2),
        ),
        (
            {
                "tool_calls": {
                    "json": {"type": "object", "properties": {"name": {"const": "f"}}, "required": ["name"]},
                    "begin": "<tool_call>\n", "end": "\n</tool_call>", "separator": "\n", "limit": 1,
                }
            },
            lambda text: text.startswith("<tool_call>\n{") and text.endswith("}\n</tool_call>"),
        ),
    ],
    ids=["choice", "regex", "grammar", "json", "tool_calls"],
)  # fmt: skip
async def test_guided_answers_follow_their_constraint(
    vllm: Vllm, loaded: LoadedModel, guidance: dict[str, Any], is_right: Any
) -> None:
    kept = await vllm.ask(
        question(loaded, "Answer please."),
        sampling_options=SamplingOptions(temperature=0.0, guided_decoding=guidance),
        stops=StopConditions(max_tokens=300),
    )
    assert kept.last.finish_reason == "stop"
    ends = set(loaded.eos_token_ids)
    text = loaded.tokenizer.decode([id for id in kept.ids if id not in ends])
    assert is_right(text), text


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        (list(range(20)) * 60, {}, "longer than the maximum"),
        ([], {}, "empty"),
        ([1, 1 << 40], {}, "token ids"),
        ([1 << 20], {}, "vocabulary"),
        ([1], {"sampling_options": SamplingOptions(temperature=-1.0)}, "temperature"),
        ([1], {"output_options": OutputOptions(logprobs=10**6)}, "logprobs"),
        ([1], {"sampling_options": SamplingOptions(guided_decoding={"regex": "(("})}, "regex"),
        ([1], {"routing": Routing(lora_name="french")}, "french"),
    ],
)
async def test_a_bad_request_is_the_clients_mistake(
    vllm: Vllm, prompt: list[int], fields: dict[str, Any], message: str
) -> None:
    kept = await vllm.ask(prompt, **fields)
    assert isinstance(kept.error, InvalidArgument)
    assert message in kept.error.message
    assert vllm.engine.quiet()


async def test_an_aborted_request_ends_at_once_and_frees_its_blocks(vllm: Vllm) -> None:
    kept = Kept()
    running = vllm.engine.generate(request([5] * 100, stops=StopConditions(max_tokens=900, ignore_eos=True)), kept)
    await until(lambda: len(kept.ids) > 2)
    assert not vllm.engine.quiet()
    running.abort()
    running.abort()
    assert kept.done.done()
    assert kept.last.finish_reason == "cancelled"
    await until(vllm.engine.quiet)
    await until(lambda: vllm.loads[-1].kv_used_blocks == 0)
    assert await vllm.engine.clear_cache()


async def test_a_request_aborted_before_it_was_sent_never_starts(vllm: Vllm) -> None:
    kept = Kept()
    vllm.engine.generate(request([5, 6]), kept).abort()
    await until(vllm.engine.quiet)
    assert kept.ids == []
    assert (await vllm.ask([5, 6])).ids


async def test_a_guided_request_aborted_while_it_is_prepared_never_starts(vllm: Vllm) -> None:
    kept = Kept()
    guided = SamplingOptions(guided_decoding={"regex": "a*"})
    vllm.engine.generate(request([5, 6], sampling_options=guided), kept).abort()
    assert kept.last.finish_reason == "cancelled"
    await until(vllm.engine.quiet)


async def test_a_stream_goes_on_when_ctrl_c_reaches_the_engines_processes(vllm: Vllm) -> None:
    kept = Kept()
    vllm.engine.generate(request([5, 6], stops=StopConditions(max_tokens=100, ignore_eos=True)), kept)
    await until(lambda: kept.ids)
    for child in psutil.Process().children(recursive=True):
        os.kill(child.pid, signal.SIGINT)  # as a terminal sends it to all processes of a command
    await kept.done
    assert kept.error is None
    assert len(kept.ids) == 100
    assert (await vllm.ask([5, 6])).ids


async def test_a_sink_that_fails_harms_no_other(vllm: Vllm) -> None:
    class Broken(Kept):
        def tokens(self, ids: list[int]) -> None:
            raise RuntimeError("broken sink")

    kept = Kept()
    vllm.engine.generate(request([5, 6, 7]), Broken())
    vllm.engine.generate(request([5, 6, 7]), kept)
    await kept.done
    assert len(kept.ids) == 8
    await until(vllm.engine.quiet)


async def test_vllms_metrics_count_what_was_answered(vllm: Vllm) -> None:
    def value(name: str, **labels: str) -> float:
        families: list[Metric] = list(vllm.engine.metrics_registry().collect())
        assert all(family.name.startswith("vllm:") for family in families)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    counted = {
        "vllm:generation_tokens_total": 8, "vllm:prompt_tokens_total": 3, "vllm:time_to_first_token_seconds_count": 1,
        "vllm:inter_token_latency_seconds_count": 7, "vllm:e2e_request_latency_seconds_count": 1,
    }  # fmt: skip
    before = {name: value(name) for name in counted}
    stops = value("vllm:request_success_total", finished_reason="length", model_name="tiny")
    await vllm.ask([5, 6, 7])
    assert {name: value(name) - before[name] for name in counted} == counted
    assert value("vllm:request_success_total", finished_reason="length", model_name="tiny") == stops + 1
