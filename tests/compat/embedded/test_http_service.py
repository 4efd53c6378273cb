"""An HTTP service over generators of the program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from dynamo.llm import HttpAsyncEngine, HttpError, HttpService
from dynamo.runtime import Context, DistributedRuntime, RuntimeConfig
from support.waiting import until


async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    text = request["messages"][0]["content"]
    if text == "refuse":
        raise HttpError(415, "no such format")
    for at, word in enumerate(["good ", "day"]):
        yield {
            "id": context.id(),
            "object": "chat.completion.chunk",
            "created": 1,
            "model": request["model"],
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": "stop" if at else None}],
        }


@asynccontextmanager
async def running() -> AsyncIterator[HttpService]:
    service = HttpService(port=0)
    service.add_chat_completions_model("mine", "checksum", HttpAsyncEngine(generate, asyncio.get_running_loop()))
    service.enable_endpoint("chat", True)
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        task = asyncio.create_task(service.run(runtime))
        await until(lambda: service.url or task.done())
        yield service
        service.shutdown()
        await task


async def test_a_generator_answers_over_http_and_chooses_its_status() -> None:
    async with running() as service, aiohttp.ClientSession() as http:

        async def ask(text: str) -> tuple[int, Any]:
            body = {"model": "mine", "messages": [{"role": "user", "content": text}]}
            async with http.post(f"{service.url}/v1/chat/completions", json=body) as answer:
                return answer.status, await answer.json()

        status, body = await ask("hello")
        assert (status, body["choices"][0]["message"]["content"]) == (200, "good day")
        status, body = await ask("refuse")
        assert (status, body["error"]["message"]) == (415, "no such format")


def test_an_endpoint_that_is_not_there_cannot_be_enabled() -> None:
    with pytest.raises(ValueError, match="batch"):
        HttpService().enable_endpoint("batch", True)
