"""What `dynamo-run` does, started by a program."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from dynamo.cli.run.grammar import parse
from dynamo.llm import EngineType, EntrypointArgs, KvRouterConfig, RouterConfig, RouterMode, make_engine, run_input
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from support.services import free_port
from support.waiting import until


async def test_an_input_is_served_until_the_runtime_shuts_down() -> None:
    port = free_port()
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        engine = await make_engine(runtime, EntrypointArgs(EngineType.Echo, model_name="echoed", http_port=port))
        serving = asyncio.create_task(run_input(runtime, "http", engine))
        async with aiohttp.ClientSession() as http:

            async def models() -> Any:
                try:
                    async with http.get(f"http://127.0.0.1:{port}/v1/models") as answer:
                        return [model["id"] for model in (await answer.json())["data"]]
                except aiohttp.ClientError:
                    return None

            assert await until(models) == ["echoed"]
        runtime.shutdown()
        await serving


async def test_a_mocker_gives_the_log_likelihood_of_a_prompt() -> None:
    port = free_port()
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        args = EntrypointArgs(EngineType.Mocker, model_path="tiny", model_name="mocked", http_port=port)
        serving = asyncio.create_task(run_input(runtime, "http", await make_engine(runtime, args)))
        async with aiohttp.ClientSession() as http:

            async def score(prompt: str) -> Any:
                asked = {"model": "mocked", "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0}
                try:
                    async with http.post(f"http://127.0.0.1:{port}/v1/completions", json=asked) as answer:
                        return (await answer.json())["choices"] if answer.status == 200 else None
                except aiohttp.ClientError:
                    return None

            (choice,) = await until(lambda: score("The cat sat"))
            assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == "The cat sat"
            first, *others = choice["logprobs"]["token_logprobs"]
            assert first is None
            assert all(logprob < 0 for logprob in others)
        runtime.shutdown()
        await serving


def test_a_router_config_becomes_the_flags_of_the_frontend() -> None:
    routing = RouterConfig(RouterMode.KV, KvRouterConfig(overlap_score_credit=0.5, use_kv_events=False))
    command = parse([*EntrypointArgs(EngineType.Dynamic, router_config=routing).words(), "in=http"])
    assert command.flags == {"router_mode": "kv", "kv_overlap_score_weight": "0.5", "use_kv_events": "false"}


def test_what_does_nothing_here_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="chat_engine_factory"):
        EntrypointArgs(EngineType.Dynamic, chat_engine_factory=print)
    with pytest.raises(ValueError, match="DeviceAwareWeighted"):
        RouterConfig(RouterMode.DeviceAwareWeighted)
