"""The controls of a real vLLM. Sleeping needs CUDA: on CPUs vLLM refuses its flag."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import installed, vllm_from_spec
from dynamo.model import LocalModel, bundled
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.protocols.errors import EngineShutdown, HttpError, InvalidArgument, from_exception
from support.sinks import Kept
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(range(5, 75))
TINY = LocalModel(source="tiny", path=bundled())


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(traces: Path) -> AsyncIterator[Any]:
    profiler = json.dumps({"profiler": "torch", "torch_profiler_dir": str(traces)})
    flags = ["--kv-cache-memory-bytes", "64M", "--profiler-config", profiler]
    made = vllm_from_spec(EngineSpec(model=TINY, context_length=1024, arguments=flags))
    try:
        await made.start()
        yield made
    finally:
        await made.close()


def begin(engine: Any, max_tokens: int = 8) -> Kept:
    kept = Kept()
    request = PreprocessedRequest(
        token_ids=PROMPT,
        stop_conditions=StopConditions(max_tokens=max_tokens, ignore_eos=True),
        sampling_options=SamplingOptions(temperature=0.0),
    )
    engine.generate(request, kept)
    return kept


async def ask(engine: Any) -> Kept:
    kept = begin(engine)
    await kept.done
    return kept


def cached(kept: Kept) -> int:
    usage = kept.last.completion_usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return int(usage.prompt_tokens_details["cached_tokens"])


def other_weights(folder: Path, *, shrink: bool = False) -> Path:
    """The bundled model with every weight halved; `shrink` cuts its largest matrix to half of the rows instead."""
    copytree(bundled(), folder, ignore=ignore_patterns("*.gguf", "*.safetensors"))
    for file in bundled().glob("*.safetensors"):
        data = file.read_bytes()
        begins = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begins])
        tensors = {name: about for name, about in header.items() if name != "__metadata__"}
        largest = max(tensors, key=lambda name: tensors[name]["data_offsets"][1] - tensors[name]["data_offsets"][0])
        parts, at = [], 0
        for name, about in tensors.items():
            first, last = about["data_offsets"]
            assert about["dtype"] == "F16"
            values = np.frombuffer(data[begins + first : begins + last], np.float16).reshape(about["shape"])
            values = values[: len(values) // 2] if shrink and name == largest else values * np.float16(0.5)
            about |= {"shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
            parts.append(values.tobytes())
            at += values.nbytes
        head = json.dumps(tensors).encode()
        (folder / file.name).write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))
    return folder


async def test_a_paused_engine_answers_when_it_resumes(engine: Any) -> None:
    controls = engine.controls()
    assert await controls["pause_generation"]({}) == {"status": "ok", "paused": True}
    waiting = begin(engine)
    assert await controls["pause_generation"]({}) == {"status": "ok", "paused": True}
    assert not waiting.done.done()
    assert await controls["resume_generation"]({}) == {"status": "ok", "paused": False}
    await waiting.done
    assert len(waiting.ids) == 8


async def test_a_pause_can_keep_running_requests_for_later(engine: Any) -> None:
    alone = begin(engine, 60)
    await alone.done
    kept = begin(engine, 60)
    await until(lambda: kept.ids)
    await engine.controls()["pause_generation"]({"mode": "keep"})
    await engine.controls()["resume_generation"]({})
    await kept.done
    assert kept.ids == alone.ids


async def test_a_request_that_vllm_aborts_can_migrate(engine: Any) -> None:
    await engine.controls()["pause_generation"]({})
    kept = begin(engine)
    await engine.controls()["pause_generation"]({})  # the request is sent meanwhile
    await engine.controls()["pause_generation"]({"mode": "abort"})
    await kept.done
    await engine.controls()["resume_generation"]({})
    assert isinstance(kept.error, EngineShutdown)
    assert engine.quiet()


async def test_new_weights_answer_without_the_cache_of_the_old_ones(engine: Any, tmp_path: Path) -> None:
    update = engine.controls()["update_weights_from_disk"]
    before = (await ask(engine)).ids
    folder = other_weights(tmp_path / "halved")
    assert await update({"model_path": str(folder)}) == {"status": "ok", "model_path": str(folder)}
    changed = await ask(engine)
    assert changed.ids != before
    assert cached(changed) == 0
    await update({"model_path": str(bundled())})
    again = await ask(engine)
    assert again.ids == before
    assert cached(again) == 0


async def test_weights_that_do_not_fit_are_refused(engine: Any, tmp_path: Path) -> None:
    update = engine.controls()["update_weights_from_disk"]
    before = (await ask(engine)).ids
    for path, reason in (
        (None, "model_path"),
        (str(tmp_path), "no weights"),
        (str(other_weights(tmp_path / "small", shrink=True)), "do not fit"),
    ):
        with pytest.raises(InvalidArgument, match=reason):
            await update({"model_path": path})
        assert (await ask(engine)).ids == before


async def test_a_profile_is_written(engine: Any, traces: Path) -> None:
    controls = engine.controls()
    await controls["start_profile"]({"profile_prefix": "one"})
    with pytest.raises(HttpError, match="stop_profile"):
        await controls["start_profile"]({})
    await ask(engine)
    await controls["stop_profile"]({})
    await until(lambda: [file for file in traces.iterdir() if file.name.startswith("one")])


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("pause_generation", {"mode": "slowly"}),
        ("pause_generation", {"clear_cache": "yes"}),
        ("update_weights_from_disk", {"model_path": str(bundled()), "mode": "slowly"}),
        ("start_profile", {"profile_prefix": 7}),
        ("start_profile", {"profile_prefix": "../x"}),
        ("sleep", {}),
        ("wake_up", {}),
    ],
)
async def test_a_control_refuses_what_it_cannot_do(engine: Any, name: str, body: dict[str, Any]) -> None:
    with pytest.raises(Exception) as refused:  # noqa: PT011
        await engine.controls()[name](body)
    assert from_exception(refused.value).status == 400


async def test_sleep_mode_on_cpus_is_refused_in_vllms_words() -> None:
    if not installed().cpu:
        pytest.skip("this vLLM can sleep")
    sleeper = vllm_from_spec(EngineSpec(model=TINY, context_length=1024, arguments=["--enable-sleep-mode"]))
    try:
        with pytest.raises(EngineError, match="Sleep mode is not supported on current platform"):
            await sleeper.start()
    finally:
        await sleeper.close()
