"""A worker that prints when its handler is cancelled; run as a process by cancellation.py."""

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
    endpoint = runtime.endpoint("bench.cancelled.generate")
    await register_llm(ModelInput.Text, ModelType.Chat, endpoint, "cancelled", "cancelled")
    await endpoint.serve_endpoint(generate)


async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    """The message is `waits <id>` or `streams <id>`: the latter yields an item before it waits."""
    kind, _, name = request["messages"][-1]["content"].partition(" ")
    print("started", name, flush=True)
    if kind == "streams":
        delta = {"role": "assistant", "content": "word"}
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    await context.async_killed_or_stopped()
    print("cancelled", name, time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
