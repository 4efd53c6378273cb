"""What an engine lacks, it refuses by name; what is wrong, it calls the client's mistake."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.engines.base import (
    CacheOwner,
    DeathSource,
    EngineError,
    KvSocketSource,
    KvSource,
    LoadSource,
    MetricsSource,
    StepSource,
)
from dynamo.engines.registry import make_engine
from dynamo.protocols.errors import InvalidArgument
from engines.conformance.conftest import CONTEXT, Started, only, spec
from engines.conformance.features import FEATURES, Has, engines_here, those
from support.asking import asking
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "logprobs": ({"logprobs": 1}, "logprobs"),
    "prompt_logprobs": ({"prompt_logprobs": 1}, "prompt_logprobs"),
    "guided": ({"guided_decoding": {"json": {"type": "object"}}}, "guided_decoding"),
    "beam_search": ({"use_beam_search": True}, "use_beam_search"),
    "best_of": ({"best_of": 2}, "best_of"),
    "lora": ({"lora_name": "french"}, "adapter"),
}
LACKING = [
    (name, option)
    for option in OPTIONS
    for name in those("beam_search" if option == "best_of" else option, Has.REFUSED, Has.LOADED)
]


@pytest.mark.parametrize(("started", "option"), LACKING, indirect=["started"])
async def test_what_an_engine_lacks_it_refuses_by_name(started: Started, option: str) -> None:
    options, named = OPTIONS[option]
    kept = await started.one(asking("Say hello", **options))
    assert isinstance(kept.error, InvalidArgument), kept.ids
    assert named in kept.error.message
    assert started.engine.quiet()


@only([name for name in those("overlong") if name != "echo_core"])
async def test_a_prompt_longer_than_the_context_is_refused_by_the_engine_itself(started: Started) -> None:
    kept = await started.one(asking([300] * CONTEXT))
    assert isinstance(kept.error, InvalidArgument)
    assert str(CONTEXT) in kept.error.message or str(CONTEXT - 1) in kept.error.message
    await until(started.engine.quiet)


async def test_it_declares_what_the_table_says(started: Started) -> None:
    engine = started.engine
    declared = {
        "kv_events": isinstance(engine, KvSource | KvSocketSource),
        "load": isinstance(engine, LoadSource),
        "steps": isinstance(engine, StepSource),
        "clear_cache": isinstance(engine, CacheOwner),
        "metrics": isinstance(engine, MetricsSource),
        "death": isinstance(engine, DeathSource),
        "guided": bool(started.info.guided_decoding),
        "resumed": started.info.resumes_guided,
    }
    assert declared == {name: FEATURES[name].engines[started.name] is Has.YES for name in declared}


@pytest.mark.parametrize("name", engines_here())
async def test_several_gpus_are_accepted_or_refused_by_name(name: str) -> None:
    if FEATURES["parallel"].engines[name] is Has.YES:
        make_engine(name, spec(name, tensor_parallel_size=2))
        return
    with pytest.raises(EngineError, match="--tensor-parallel-size"):
        make_engine(name, spec(name, tensor_parallel_size=2))


@pytest.mark.parametrize("name", engines_here())
async def test_an_unknown_flag_is_refused_at_once(name: str) -> None:
    with pytest.raises(EngineError, match="--no-such-flag"):
        make_engine(name, spec(name, arguments=["--no-such-flag", "1"]))
