"""A worker that does as the request's first word says and prints what happens to it; tests run it as a process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.llm import ModelInput, ModelType, register_llm
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker

healthy = asyncio.Event()
released = asyncio.Event()


@dynamo_worker
async def worker(runtime: DistributedRuntime) -> None:
    healthy.set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, released.set)
    endpoint = runtime.endpoint("toy.backend.generate")
    await register_llm(ModelInput.Text, ModelType.Chat, endpoint, "toy", os.environ.get("TOY_NAME", "toy"))
    print("registered", runtime.instance_id, flush=True)
    await endpoint.serve_endpoint(generate, metrics_labels=[("model", "toy")], health_check_payload=asking("check"))


def asking(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}]}


async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    words = request["messages"][-1]["content"].split()
    print("started", words[0], flush=True)
    match words:
        case ["wait"]:
            await context.async_killed_or_stopped()
            print("cancelled", flush=True)
        case ["check"]:
            await healthy.wait()
            yield chunk("well")
        case ["break"]:
            healthy.clear()
            yield chunk("broken", "stop")
        case ["mend"]:
            healthy.set()
            yield chunk("mended", "stop")
        case ["hold"]:
            yield chunk("first")
            await released.wait()
            yield chunk(" last", "stop")
        case ["forever"]:
            while not context.is_stopped():
                yield chunk("x")
                await asyncio.sleep(0.02)
            print("cancelled", flush=True)
        case _:
            yield chunk(" ".join(words), "stop")


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
