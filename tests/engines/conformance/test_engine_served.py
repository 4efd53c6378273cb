"""Each engine in a real worker process behind a frontend: what the two of them add to an engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from engines.conformance.conftest import CONTEXT
from engines.conformance.features import FEATURES, MODELS, SETTINGS, Has, engines_here
from support.asking import chat
from support.stack import Frontend, Process, Stack
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENCE = 900.0
"""Only ends a test that hangs: vLLM takes a minute to start."""


class Served:
    def __init__(self, name: str, worker: Process, frontend: Frontend) -> None:
        self.name = name
        self.worker = worker
        self.frontend = frontend

    async def complete(self, prompt: Any = None, **more: Any) -> Any:
        """Greedy, unless keyword arguments say otherwise."""
        prompt = prompt or (
            chat("What is the capital of France?") if self.name in MODELS else "one two three four five"
        )
        options = {"max_tokens": 12, "temperature": 0.0, **more}
        return await self.frontend.client.completions.create(model="tiny", prompt=prompt, **options)

    async def begin(self) -> tuple[Any, AsyncIterator[Any]]:
        """A long stream whose first tokens have come, and what is left of it."""
        stream = await self.complete(
            list(range(300, 700)), max_tokens=500, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = aiter(stream)
        await anext(chunks)
        return stream, chunks


@asynccontextmanager
async def serving(name: str, folder: Path) -> AsyncIterator[Served]:
    settings = SETTINGS[name]
    arguments = folder / "arguments.json"
    arguments.write_text(json.dumps(settings.get("extra_engine_args", {})))
    environ = {"OMP_NUM_THREADS": "1", **settings.get("environ", {})}
    site = [Path(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    async with Stack(folder, environ, *site) as stack:
        flags = ("--context-length", str(CONTEXT), "--extra-engine-args", str(arguments))
        worker = await stack.python("-m", "dynamo.worker", name, "tiny", *flags, *settings.get("arguments", ()))
        frontend = await stack.frontend()
        async with asyncio.timeout(PATIENCE):
            while await frontend.models() != ["tiny"]:
                assert "(end of output)" not in worker.lines[-1:], worker.output
                await asyncio.sleep(0.1)
        yield Served(name, worker, frontend)
        # Killed, a worker could not end the processes of its engine.
        if worker.child.returncode is None:
            worker.signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                await worker.child.wait()


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=engines_here())
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with serving(request.param, tmp_path_factory.mktemp(request.param)) as served:
        yield served


async def test_a_stop_string_ends_an_answer(served: Served) -> None:
    whole = (await served.complete()).choices[0].text
    stop = whole[len(whole) // 2 :][:4]
    choice = (await served.complete(stop=[stop])).choices[0]
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"


async def test_a_stop_id_ends_an_answer(served: Served) -> None:
    shown = {"return_token_ids": True}
    ids = (await served.complete(extra_body=shown)).choices[0].token_ids
    stop = {**shown, "stop_token_ids": [ids[3]]}
    choice = (await served.complete(extra_body=stop)).choices[0]
    assert choice.token_ids == ids[: ids.index(ids[3]) + 1]
    assert choice.finish_reason == "stop"


async def test_every_choice_of_n_is_an_answer(served: Served) -> None:
    answer = await served.complete([5, 6, 7], n=3, temperature=2.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)
    texts = {choice.text for choice in answer.choices}
    assert len(texts) == (1 if served.name == "echo_core" else 3)


async def test_a_prompt_longer_than_the_context_is_the_clients_mistake(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match=str(CONTEXT)):
        await served.complete([300] * (CONTEXT + 1))


FIELDS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 1},
    "guided": {"extra_body": {"response_format": {"type": "json_object"}}},
    "beam_search": {"extra_body": {"use_beam_search": True}},
}


@pytest.mark.parametrize("feature", FIELDS)
async def test_a_field_is_followed_or_refused(served: Served, feature: str) -> None:
    if FEATURES[feature].engines[served.name] is Has.REFUSED:
        with pytest.raises(openai.BadRequestError):
            await served.complete(**FIELDS[feature])
    else:
        assert (await served.complete(**FIELDS[feature])).choices[0].text


async def test_a_client_that_leaves_frees_its_request(served: Served) -> None:
    stream, _ = await served.begin()
    await stream.close()
    assert (await served.complete()).choices[0].text


def family(pid: int) -> dict[int, str]:
    """The living descendants of a process, with their command lines."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child: Path(f"/proc/{child}/cmdline").read_text(), **family(child)}
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def engine_process(name: str, worker: int) -> int:
    """The engines of vLLM and SGLang are processes of their own, that of others the worker's."""
    if (title := {"vllm": "EngineCore", "sglang": "sglang::scheduler"}.get(name)) is None:
        return worker
    return next(pid for pid, command in family(worker).items() if title in command)


@pytest.mark.parametrize("name", engines_here())
async def test_a_worker_whose_engine_is_killed_leaves_with_an_error(name: str, tmp_path: Path) -> None:
    async with serving(name, tmp_path) as served:
        children = family(served.worker.child.pid)
        _, chunks = await served.begin()
        os.kill(engine_process(name, served.worker.child.pid), signal.SIGKILL)
        with pytest.raises(openai.APIError):
            [_ async for _ in chunks]
        assert await served.worker.ended() != 0
        await served.frontend.until_models()
        await until(lambda: not any(map(alive, children)))
