"""CPU per request of the mocker alone: a closed loop of clients in the same process, with a counting sink."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import uvloop

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.protocols.engine import PreprocessedRequest, StopConditions
from dynamo.protocols.errors import DynamoException
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.worker.serve import CacheGauges, publish_kv_events, publish_load


class CountingSink:
    """Counts tokens and calls back at the end of the stream."""

    def __init__(self, on_end: Callable[[int], None]) -> None:
        self._on_end = on_end
        self.count = 0

    def tokens(self, ids: list[int]) -> None:
        self.count += len(ids)

    def item(self, value: Any) -> None:
        self.count += len(value.token_ids)

    def end(self) -> None:
        self._on_end(self.count)

    def fail(self, error: DynamoException) -> None:
        raise error


async def measure(engine: MockerEngine, prompts: list[list[int]], output: int, concurrency: int) -> tuple[float, float]:
    """(CPU, wall) seconds to answer all prompts, `concurrency` at a time."""
    done = asyncio.get_running_loop().create_future()
    queue = iter(prompts)
    left = len(prompts)

    def ended(count: int) -> None:
        nonlocal left
        assert count == output
        left -= 1
        if not left:
            done.set_result(None)
        send()

    def send() -> None:
        prompt = next(queue, None)
        if prompt is not None:
            request = PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=output))
            engine.generate(request, CountingSink(ended))

    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(concurrency):
        send()
    await done
    return time.process_time() - cpu, time.perf_counter() - wall


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--input", type=int, default=64)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--speedup", type=float, default=1e6)
    parser.add_argument("--blocks", type=int, default=16384)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--events", action="store_true", help="record KV events without publishing them")
    parser.add_argument("--publish", choices=("memory", "zmq"), help="publish KV events and load on this event plane")
    options = parser.parse_args()
    rng = random.Random(0)
    prompts = [[rng.randrange(1000, 30000) for _ in range(options.input)] for _ in range(options.requests)]
    args = MockerArgs(speedup_ratio=options.speedup, num_gpu_blocks=options.blocks, block_size=options.block_size)
    engine = MockerEngine(args)
    if options.events:
        engine.on_kv_events(lambda rank, changes: None)
    await engine.start()
    runtime = None
    if options.publish:
        network = RuntimeConfig.from_env({}, discovery_backend="memory", event_plane=options.publish)
        runtime = DistributedRuntime(config=network)
        await publish_kv_events(runtime.endpoint("bench.backend.generate"), engine)
        await publish_load(runtime.endpoint("bench.backend.generate"), engine, CacheGauges())
    cpu, wall = await measure(engine, prompts, options.output, options.concurrency)
    await engine.close()
    if runtime:
        await runtime.close()
    print(f"{cpu / options.requests * 1e6:.0f} us CPU per request, {options.requests / wall:.0f} requests/s")


if __name__ == "__main__":
    uvloop.run(main())
