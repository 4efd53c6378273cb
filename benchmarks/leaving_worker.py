"""A worker that notes when it learns that its client has left; run as a process by cancellation.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.llm import ModelInput, ModelType, register_llm
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker


@dynamo_worker
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("bench.leaving.generate")
    await register_llm(ModelInput.Text, ModelType.Chat, endpoint, "leaving", "leaving")
    await endpoint.serve_endpoint(generate)


async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    """The message is `silent <id>` or `speaks <id>`: whether an item comes before the wait."""
    kind, _, name = request["messages"][-1]["content"].partition(" ")
    print("started", name, flush=True)
    if kind == "speaks":
        delta = {"role": "assistant", "content": "word"}
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    await context.async_killed_or_stopped()
    print("left", name, time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
