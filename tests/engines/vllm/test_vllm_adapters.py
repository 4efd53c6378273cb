"""A real vLLM with LoRA adapters that are loaded while it runs, and its controls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import vllm_from_spec
from dynamo.model import LocalModel, bundled
from dynamo.model.adapter import lora_name_to_id
from dynamo.protocols.engine import PreprocessedRequest, Routing, SamplingOptions, StopConditions
from dynamo.protocols.errors import InvalidArgument
from support.adapter_files import make_adapter
from support.sinks import Kept

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(range(5, 75))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Any]:
    flags = ["--kv-cache-memory-bytes", "64M", "--enable-lora", "--max-lora-rank", "8"]
    model = LocalModel(source="tiny", path=bundled())
    made = vllm_from_spec(EngineSpec(model=model, context_length=1024, arguments=flags))
    try:
        await made.start()
        yield made
    finally:
        await made.close()


async def ask(engine: Any, adapter: str | None = None) -> Kept:
    kept = Kept()
    request = PreprocessedRequest(
        token_ids=PROMPT,
        stop_conditions=StopConditions(max_tokens=8, ignore_eos=True),
        sampling_options=SamplingOptions(temperature=0.0),
        routing=Routing(lora_name=adapter),
    )
    engine.generate(request, kept)
    await kept.done
    return kept


def cached(kept: Kept) -> int:
    usage = kept.last.completion_usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return int(usage.prompt_tokens_details["cached_tokens"])


async def test_a_loaded_adapter_answers_in_its_own_way_until_it_is_unloaded(engine: Any, tmp_path: Path) -> None:
    base = (await ask(engine)).ids
    folder = make_adapter(tmp_path / "a", seed=1)
    number = await engine.load_adapter("a", folder)
    assert number == lora_name_to_id("a") == await engine.load_adapter("a", folder)
    adapted = (await ask(engine, "a")).ids
    assert adapted != base
    assert (await ask(engine)).ids == base
    await engine.unload_adapter("a")
    assert isinstance((await ask(engine, "a")).error, InvalidArgument)


async def test_another_adapter_of_the_same_name_does_not_read_the_cache_of_the_first(
    engine: Any, tmp_path: Path
) -> None:
    answers = []
    for seed in (2, 3):
        await engine.load_adapter("b", make_adapter(tmp_path / str(seed), seed=seed))
        answers.append(await ask(engine, "b"))
        await engine.unload_adapter("b")
    assert cached(answers[1]) == 0
    assert answers[0].ids != answers[1].ids


@pytest.mark.parametrize(
    ("rank", "broken", "reason"),
    [
        (4, "adapter_config.json", "PEFT"),
        (16, None, "--max-lora-rank"),
        (4, "adapter_model.safetensors", "cannot load"),
    ],
)
async def test_an_adapter_that_cannot_be_loaded_is_refused_with_the_reason(
    engine: Any, tmp_path: Path, rank: int, broken: str | None, reason: str
) -> None:
    folder = make_adapter(tmp_path / "c", seed=4, rank=rank)
    if broken:
        (folder / broken).write_text("?")
    with pytest.raises(InvalidArgument, match=reason):
        await engine.load_adapter("c", folder)
    assert (await ask(engine)).error is None


async def test_controls_that_need_a_flag_name_it(engine: Any) -> None:
    controls = engine.controls()
    for name, flag in (("sleep", "--enable-sleep-mode"), ("start_profile", "--profiler-config")):
        with pytest.raises(InvalidArgument, match=flag):
            await controls[name]({})


async def test_a_control_empties_the_prefix_cache(engine: Any) -> None:
    await ask(engine)
    assert cached(await ask(engine)) == 64
    assert await engine.controls()["reset_prefix_cache"]({}) == {"status": "ok", "reset": True}
    assert cached(await ask(engine)) == 0
