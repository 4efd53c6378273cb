"""LoRA adapters are loaded into a running worker over HTTP, and are models of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from dynamo.model import S3Config
from dynamo.protocols.card import LoraInfo, ModelCard
from dynamo.runtime import DistributedRuntime, records
from support.s3_server import S3Server
from support.stack import Stack
from support.waiting import until

SERVING = "worker for 'tiny' at dyn://dynamo.backend.generate"


async def cards(here: DistributedRuntime) -> dict[str, ModelCard]:
    """By the name of the model."""
    found = (records.decode_card(value) for value in (await here.discovery.get_prefix("v1/mdc/")).values())
    return {card.name: card for card in found}


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server("adapters", S3Config()) as server:
        server.files["poet/adapter_config.json"] = b"{}"
        yield server


@pytest.fixture
async def loras(stack: Stack, s3: S3Server) -> str:
    """The URL of the routes of a worker that has no adapter yet."""
    env = {"DYN_SYSTEM_PORT": "0", "AWS_ENDPOINT_URL": s3.endpoint}
    worker = await stack.python("-m", "dynamo.worker", "child", "tiny", "--dyn-tool-call-parser", "none", **env)
    await worker.line(SERVING)
    line = await worker.line("status at ")
    return line.rpartition(" ")[2].removesuffix("/health") + "/v1/loras"


async def test_an_adapter_is_a_model_from_its_loading_to_its_unloading(loras: str, here: DistributedRuntime) -> None:
    async def call(method: str, path: str = "", **options: Any) -> tuple[int, Any]:
        async with http.request(method, loras + path, **options) as answer:
            return answer.status, await answer.json()

    body = {"lora_name": "poet/v1", "source": {"uri": "s3://adapters/poet"}}
    async with aiohttp.ClientSession() as http:
        for _ in range(2):  # loading again changes nothing
            status, loaded = await call("POST", json=body)
            assert (status, loaded["status"], loaded["lora_id"]) == (200, "success", 7)
        assert (await call("GET"))[1]["count"] == 1
        found = await cards(here)
        assert found["poet/v1"].lora == LoraInfo(name="poet/v1", base_model="tiny")
        assert found["poet/v1"].files == found["tiny"].files
        assert found["poet/v1"].runtime_config == found["tiny"].runtime_config
        assert found["tiny"].runtime_config.tool_call_parser is None
        client = await here.endpoint("dynamo.backend.generate-lora-7").client()
        await client.wait_for_instances()
        stream = await client.generate({"token_ids": [7], "stop_conditions": {"max_tokens": 1}}, annotated=False)
        assert [token async for item in stream for token in item["token_ids"]] == [5]
        assert (await call("DELETE", "/poet/v1"))[0] == 200
        assert (await call("DELETE", "/poet/v1"))[0] == 404
        assert (await call("GET"))[1]["loras"] == {}
    assert set(await cards(here)) == {"tiny"}
    await until(lambda: not client.instance_ids())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"lora_name": "tiny", "source": {"uri": "file:///tmp"}}, "base model"),
        ({"lora_name": "a", "source": {"uri": "s3://bucket/a"}}, "NoSuchBucket"),
        ({"lora_name": "a", "source": {"uri": "gs://bucket/a"}}, "s3://bucket/folder"),
        ({"lora_name": "a", "source": {"uri": "file:///nowhere/at/all"}}, "is no adapter"),
        ({"lora_name": "a"}, "source must be"),
        ({"source": {"uri": "file:///tmp"}}, "lora_name"),
    ],
)
async def test_an_adapter_that_cannot_be_loaded_is_refused(loras: str, body: dict[str, Any], reason: str) -> None:
    async with aiohttp.ClientSession() as http, http.post(loras, json=body) as answer:
        assert answer.status == 400
        assert reason in (await answer.json())["error"]
