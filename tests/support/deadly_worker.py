"""A worker whose process aborts on a constraint that says `deadly`, or when asked for exactly 666 tokens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


@dynamo_worker
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("toy.backend.generate")
    config = ModelRuntimeConfig()
    config.guided_decoding = True
    kinds = ModelType.Chat | ModelType.Completions
    await register_llm(ModelInput.Tokens, kinds, endpoint, "tiny", "tiny", migration_limit=5, runtime_config=config)
    await endpoint.serve_endpoint(generate)


async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    guidance = request["sampling_options"].get("guided_decoding")
    if "deadly" in str(guidance) or request["stop_conditions"].get("max_tokens") == 666:
        os.abort()
    yield {"token_ids": [40, 41], "finish_reason": "stop"}


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
