"""A worker whose process ends, or hangs, by a request: a constraint that says `deadly`, 666 tokens, or a deadly seed.

Other requests are answered with tokens that follow from their place alone, so that any worker continues any answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker

MODES = ("abort", "fault", "exit", "kill", "allocate", "late", "hang")
DEADLY_SEED = 6660
"""Plus the index of the mode."""
MEMORY = 1 << 30


@dynamo_worker
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("toy.backend.generate")
    config = ModelRuntimeConfig()
    config.guided_decoding = True
    kinds = ModelType.Chat | ModelType.Completions
    await register_llm(ModelInput.Tokens, kinds, endpoint, "tiny", "tiny", migration_limit=5, runtime_config=config)
    await endpoint.serve_endpoint(generate)


async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    sampling, stops = request["sampling_options"], request["stop_conditions"]
    wanted = stops.get("max_tokens")
    if "deadly" in str(sampling.get("guided_decoding")) or wanted == 666:
        os.abort()
    if wanted is None:
        yield {"token_ids": [40, 41], "finish_reason": "stop"}
        return
    mode = (sampling.get("seed") or 0) - DEADLY_SEED
    deadly = MODES[mode] if 0 <= mode < len(MODES) else ""
    if deadly and deadly != "late":
        end(deadly)
    place = len(request["token_ids"])
    for count in range(wanted):
        await asyncio.sleep(0.002)
        if deadly and count == 3:
            end("abort")
        last = count == wanted - 1
        yield {"token_ids": [40 + (place + count) % 20], "finish_reason": "length" if last else None}


def end(mode: str) -> None:
    match mode:
        case "abort":
            os.abort()
        case "fault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "allocate":
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            held = []
            try:
                while True:
                    held.append(bytearray(1 << 26))
            except MemoryError:
                os.abort()
        case "hang":
            print("hanging", flush=True)
            while True:
                time.sleep(60)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
