"""The planner on real processes: a frontend and mockers under a supervisor, all on this machine.

`planner_processes.py day [--minutes 30] [--fixed N]`: a day-shaped load with bursts, compressed; with --fixed as many
workers all the time instead of a planner. It is the load that `planner.py` simulates, request by request.
`planner_processes.py scale-downs [--count 200]`: workers are drained and started again under streams; every answer must
be complete.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import openai
from msgspec import Struct

from dynamo.planner import Planner, PlannerConfig
from dynamo.planner.act import LocalActor
from dynamo.planner.history import PoolSeen
from dynamo.planner.observe import make_source
from dynamo.process.supervisor.output import PrefixedOutput
from dynamo.supervisor import Supervisor, read_deployment
from planner import LoadShape, day
from prompts import MODEL, make_model

TTFT, ITL = 4.0, 0.25


class StreamedResponse(Struct):
    """The times of one request, in seconds; `tokens` is how many came."""

    sent: float
    first: float | None = None
    ended: float = 0.0
    tokens: int = 0
    error: str = ""

    @property
    def within(self) -> bool:
        if self.error or self.first is None:
            return False
        return self.first - self.sent <= TTFT and (self.ended - self.first) / max(1, self.tokens - 1) <= ITL


class WorkerClock:
    """Adds up how long worker processes were there, from their start to their end."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.most = 0
        self._names: dict[int, bool] = {}

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.2)
            now = time.monotonic()
            count = sum(map(self._is_worker, self._children()))
            self.seconds += count * (now - before)
            self.most = max(self.most, count)
            before = now

    @staticmethod
    def _children() -> list[int]:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]

    def _is_worker(self, pid: int) -> bool:
        if not self._names.get(pid):  # between fork and exec a process has the name of its parent
            with suppress(OSError):
                self._names[pid] = b"dynamo.mocker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return self._names.get(pid, False)


@asynccontextmanager
async def deployed(folder: Path, workers: int, speedup: float) -> AsyncIterator[tuple[Supervisor, str]]:
    """The supervisor, and the URL of its frontend.

    Migration is off: an answer that is cut off is lost. Some take minutes here, so workers have time to end them.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = (
        f"model-path: {make_model(folder / 'model')}, model-name: {MODEL}, speedup-ratio: {speedup}, "
        "num-gpu-blocks-override: 4096, block-size: 64, max-num-seqs: 64"
    )
    (folder / "serve.yaml").write_text(
        f"drain_seconds: 600\ncomponents:\n  worker: {{kind: mocker, replicas: {workers}, flags: {{{flags}}}}}\n"
        f"  frontend: {{flags: {{http-port: {port}, router-mode: kv, migration-limit: 0}}}}\n"
    )
    with (folder / "log").open("w") as log:
        deployment = read_deployment(folder / "serve.yaml")
        async with Supervisor(deployment, os.environ, PrefixedOutput(log, colour=False)) as supervisor:
            await supervisor.start_all()
            await supervisor.until_ready()
            await until_served(f"http://127.0.0.1:{port}")
            yield supervisor, f"http://127.0.0.1:{port}"


async def until_served(url: str) -> None:
    """Workers are ready before the frontend has heard of them; requests until then would be refused."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while True:
            if (await client.models.list()).data:
                return
            await asyncio.sleep(0.1)


async def ask(client: openai.AsyncOpenAI, rng: random.Random, inputs: int, outputs: int) -> StreamedResponse:
    outcome = StreamedResponse(sent=time.monotonic())
    try:
        stream = await client.completions.create(
            model=MODEL, prompt=[rng.randrange(10, 250) for _ in range(inputs)], max_tokens=outputs, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for chunk in stream:
            if chunk.choices:
                outcome.ended = time.monotonic()
                outcome.first = outcome.first or outcome.ended
            if chunk.usage:
                outcome.tokens = chunk.usage.completion_tokens
        if outcome.tokens != outputs:
            outcome.error = f"{outcome.tokens} tokens instead of {outputs}"
    except openai.OpenAIError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def run_day(asked: argparse.Namespace, folder: Path) -> None:
    shape = LoadShape(hours=asked.minutes / 60, peak=asked.peak, seed=asked.seed, shape=asked.shape)
    config = PlannerConfig(
        deployment="serve.yaml", optimization_target="sla", ttft_ms=1000 * TTFT, itl_ms=1000 * ITL, max_gpu_budget=24,
        startup_seconds=asked.startup, load_adjustment_interval_seconds=asked.interval, scale_down_step=4,
        throughput_adjustment_interval_seconds=asked.window, frontend_url="",
    )  # fmt: skip
    seen: list[PoolSeen] = []
    async with deployed(folder, asked.fixed or 2, asked.speedup) as (supervisor, url):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        clock, rng = WorkerClock(), random.Random(asked.seed)
        counting = asyncio.create_task(clock.run())
        actor = LocalActor(supervisor, config)
        source = make_source(PlannerConfig(environment="virtual", frontend_url=url))
        planner = Planner(
            config, source, actor, observer=lambda now, _: seen.extend([now.decode] if now.decode else ())
        )
        planning = None if asked.fixed else asyncio.create_task(planner.run())
        begun, running = time.monotonic(), []
        for request in day(shape):
            await asyncio.sleep(max(0.0, begun + (request.at or 0.0) - time.monotonic()))
            running.append(asyncio.create_task(ask(client, rng, request.input_tokens, request.output_tokens)))
        outcomes = await asyncio.gather(*running)
        for task in filter(None, (planning, counting)):
            task.cancel()
        await asyncio.gather(*filter(None, (planning, counting)), return_exceptions=True)
        seconds = clock.seconds
        await client.close()
    report_day(asked, shape, outcomes, seen, begun, seconds)


def report_day(
    asked: argparse.Namespace, shape: LoadShape, outcomes: list[StreamedResponse], seen: list[PoolSeen], begun: float,
    seconds: float,
) -> None:  # fmt: skip
    failed = [outcome.error for outcome in outcomes if outcome.error]
    share = sum(outcome.within for outcome in outcomes) / len(outcomes)
    wanted = [pool.wanted for pool in seen]
    name = f"{asked.fixed} workers" if asked.fixed else f"planner, {min(wanted)} to {max(wanted)} workers"
    print(
        f"{name}: {100 * share:.1f} % of {len(outcomes):,} within targets, {seconds:,.0f} worker-s, "
        f"{len(failed)} failed"
    )
    late = [outcome.sent - begun for outcome in outcomes if not outcome.within]
    bursts = shape.bursts()
    within = sum(any(start <= at < start + shape.seconds / 60 for start in bursts) for at in late)
    print(f"  missed a target: {within} in bursts, {len(late) - within} at other times")
    moments = [int(at / shape.seconds * 24) for at in late]
    print("  by hour of the day:", ", ".join(f"{hour}: {moments.count(hour)}" for hour in sorted(set(moments))))
    if not asked.fixed:
        steps = [after - before for before, after in pairwise(wanted) if after != before]
        reversals = sum((one > 0) != (other > 0) for one, other in pairwise(steps))
        started = sum(step for step in steps if step > 0)
        start = asked.interval * sum(pool.starting for pool in seen) / max(1, started)
        print(f"  {reversals} reversals for {shape.changes} changes of load; a worker took {start:.1f} s to start")
    for error in failed[:5]:
        print(" ", error)


async def run_scale_downs(asked: argparse.Namespace, folder: Path) -> None:
    async with deployed(folder, 3, 2.0) as (supervisor, url):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        done = asyncio.Event()

        async def user(number: int) -> list[StreamedResponse]:
            rng, outcomes = random.Random(number), []
            while not done.is_set():
                outcomes.append(await ask(client, rng, 400, rng.randrange(20, 200)))
            return outcomes

        users = [asyncio.create_task(user(number)) for number in range(asked.users)]
        for number in range(1, asked.count + 1):
            await supervisor.scale("worker", 2)
            await supervisor.scale("worker", 3)
            await supervisor.until_ready()
            if number % 20 == 0:
                print(f"{number} scale-downs", flush=True)
        done.set()
        outcomes = [outcome for outcomes in await asyncio.gather(*users) for outcome in outcomes]
        await client.close()
    lost = [outcome.error for outcome in outcomes if outcome.error]
    print(f"{asked.count} scale-downs under {asked.users} streams: {len(outcomes):,} answers, {len(lost)} lost")
    for error in lost[:5]:
        print(" ", error)
    if lost:
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("day", "scale-downs"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--peak", type=float, default=5.0, help="requests per second")
    parser.add_argument("--shape", default="day")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speedup", type=float, default=0.1, help="of the mockers")
    parser.add_argument("--startup", type=float, default=2.0, help="seconds that a worker takes to start here")
    parser.add_argument("--interval", type=float, default=2.5, help="load_adjustment_interval_seconds")
    parser.add_argument("--window", type=float, default=45.0, help="throughput_adjustment_interval_seconds")
    parser.add_argument("--fixed", type=int, default=0, help="no planner, and as many workers")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--users", type=int, default=6)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        asyncio.run((run_day if asked.what == "day" else run_scale_downs)(asked, Path(folder)))


if __name__ == "__main__":
    main()
