"""The simulator beside reality: the same traffic through real processes and through `dynamo.simulate`.

usage: python benchmarks/simulated.py [--workers 4,16] [--modes kv,round-robin] [--requests 400] [--seeds 1-3]
                                     [--gpu-blocks 4096] [--host-blocks 0] [--disk-blocks 0] [--disk-gbps 7]
                                     [--recorded-steps]

A frontend and mockers at speed 1 get made-up traffic over HTTP: sessions with a shared system prompt, several turns,
arrivals at random. The frontend records a request trace; the simulator replays it on as many workers. The table has the
mean and p99 of the time to first token and the share of cached prompt tokens of both, and the difference.

With --recorded-steps the mockers record their steps, and the simulator does not know their curves: it gets the profile
that `dynamo profile` makes of these steps.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import msgspec
import uvloop
from msgspec import structs

from conversations import seed_list
from dynamo.engines.mocker import MockerArgs
from dynamo.lab.profile.command import main as profile
from dynamo.lab.replay.settings import FRONTEND_MS
from dynamo.router.config import RoutingConfig
from dynamo.simulate import SimulatedRequest, SimulationConfig, Synthetic, read_request_trace, simulate
from figures import percentile, table
from processes import Stack
from prompts import MODEL, make_model


def prompt(request: SimulatedRequest) -> list[int]:
    """Its blocks as token ids that the model has."""
    ids: list[int] = []
    for block in request.block_ids:
        ids += random.Random(block).choices(range(200, 3000), k=request.block_size)
    ids += random.Random(request.label).choices(range(200, 3000), k=max(0, request.input_tokens - len(ids)))
    return ids[: request.input_tokens]


async def send(url: str, traffic: Iterable[SimulatedRequest]) -> None:
    loop = asyncio.get_running_loop()
    bodies = [
        (request, msgspec.json.encode({"model": MODEL, "prompt": prompt(request), "max_tokens": request.output_tokens,
                                       "ignore_eos": True, "stream": True}))
        for request in traffic
    ]  # fmt: skip
    last: dict[str, asyncio.Task[None]] = {}

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        start = loop.time()

        async def ask(request: SimulatedRequest, body: bytes, before: asyncio.Task[None] | None) -> None:
            if before:
                await before
                await asyncio.sleep(request.delay)
            headers = {"Content-Type": "application/json"}
            async with http.post(f"{url}/v1/completions", data=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                async for _ in answer.content.iter_any():
                    pass

        tasks = []
        for request, body in bodies:
            if request.at is not None:
                await asyncio.sleep(max(0.0, start + request.at - loop.time()))
            task = asyncio.create_task(ask(request, body, last.get(request.session)))
            tasks.append(task)
            if request.session:
                last[request.session] = task
        await asyncio.gather(*tasks)


def profiled(folder: Path, engine: MockerArgs) -> MockerArgs:
    """The engine with the times of its recorded steps."""
    steps = sorted(map(str, folder.glob("steps.*.jsonl.gz")))
    profile([*steps, "--output", str(folder / "profile.npz")])
    return structs.replace(engine, planner_profile_data=str(folder / "profile.npz"))


def one(
    folder: Path, model: Path, engine: MockerArgs, workers: int, mode: str, requests: int, seed: int, *, recorded: bool
) -> list[str]:
    traffic = Synthetic(
        requests=requests, input_tokens=4000, output_tokens=64, interval=3.0 / workers, turns=3, shared_prefix=0.6,
        groups=3 * workers, think=1.0, seed=seed,
    )  # fmt: skip
    trace = folder / "trace.jsonl"
    environ = {
        "DYN_REQUEST_TRACE": "1",
        "DYN_REQUEST_TRACE_FILE_PATH": str(trace),
        "DYN_REQUEST_TRACE_CAPACITY": "9999",
        "DYN_FPM_TRACE": str(recorded),
        "DYN_FPM_MODE": "full",
        "DYN_FPM_OUTPUT_PATH": str(folder / "steps"),
    }
    with Stack(folder, environ=environ) as stack:
        flags = {
            "--num-workers": workers,
            "--num-gpu-blocks-override": engine.num_gpu_blocks,
            "--num-g2-blocks": engine.num_g2_blocks,
            "--num-g3-blocks": engine.num_g3_blocks,
            "--bandwidth-g2-to-g3-gbps": engine.bandwidth_g2_to_g3_gbps,
            "--bandwidth-g3-to-g2-gbps": engine.bandwidth_g3_to_g2_gbps,
        }
        stack.mocker(model, MODEL, *(str(word) for flag in flags.items() for word in flag))
        stack.frontend("--router-mode", mode)
        stack.until("/v1/models", f'"{MODEL}"'.encode())
        stack.until("/health", b"")
        uvloop.run(settled(stack.url, workers))
        uvloop.run(send(stack.url, traffic))
    rows = [msgspec.json.decode(line)["request"] for line in trace.read_bytes().splitlines()]
    ttft = [row["ttft_ms"] for row in rows]
    if recorded:
        engine = profiled(folder, engine)
    cached = sum(row["cached_tokens"] for row in rows) / sum(row["input_tokens"] for row in rows)
    config = SimulationConfig(
        workers=workers, engine=engine, routing=RoutingConfig(mode=mode), frontend_seconds=FRONTEND_MS / 1000, seed=seed
    )
    report = simulate(config, lambda: read_request_trace(trace))
    assert report.ttft_ms
    assert report.completed == len(rows)
    mean, p99 = sum(ttft) / len(ttft), percentile(ttft, 99)
    return [
        mode, str(workers), str(seed), str(len(rows)), f"{mean:.1f}", f"{report.ttft_ms.mean:.1f}",
        f"{100 * (report.ttft_ms.mean / mean - 1):+.1f} %", f"{p99:.1f}", f"{report.ttft_ms.p99:.1f}",
        f"{100 * (report.ttft_ms.p99 / p99 - 1):+.1f} %", f"{100 * cached:.1f}", f"{100 * report.prefix_reuse:.1f}",
        *(f"{100 * report.restored_tokens.get(tier, 0) / report.input_tokens:.1f}" for tier in ("host", "disk")),
        f"{os.getloadavg()[0]:.1f}",
    ]  # fmt: skip


async def settled(url: str, workers: int) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{url}/health") as answer:
                instances = (await answer.json()).get("instances", [])
            if sum(each.get("endpoint") == "generate" for each in instances) >= workers:
                return
            await asyncio.sleep(0.05)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--workers", default="4,16")
    ap.add_argument("--modes", default="kv,round-robin")
    ap.add_argument("--requests", type=int, default=400)
    ap.add_argument("--seeds", default="1-3")
    ap.add_argument("--gpu-blocks", type=int, default=4096, help="of each worker (%(default)s)")
    ap.add_argument("--host-blocks", type=int, default=0, help="below the cache of each worker (%(default)s)")
    ap.add_argument("--disk-blocks", type=int, default=0, help="below the host memory of each worker (%(default)s)")
    ap.add_argument("--disk-gbps", type=float, default=7.0, help="how fast blocks are written and read (%(default)s)")
    ap.add_argument("--recorded-steps", action="store_true", help="simulate with a profile of the mockers' steps")
    o = ap.parse_args()
    head = ["router", "workers", "seed", "requests", "TTFT mean, real", "simulated", "", "p99, real", "simulated", "",
            "cached %, real", "simulated", "of which host", "of which disk", "load"]  # fmt: skip
    found = []
    engine = MockerArgs(
        num_gpu_blocks=o.gpu_blocks, num_g2_blocks=o.host_blocks, num_g3_blocks=o.disk_blocks,
        bandwidth_g2_to_g3_gbps=o.disk_gbps, bandwidth_g3_to_g2_gbps=o.disk_gbps,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        model = make_model(Path(name) / "model")
        for workers in map(int, o.workers.split(",")):
            for mode in o.modes.split(","):
                for seed in seed_list(o.seeds):
                    folder = Path(name) / f"{workers} {mode} {seed}"
                    found.append(one(folder, model, engine, workers, mode, o.requests, seed, recorded=o.recorded_steps))
                    print(" ".join(found[-1]), file=sys.stderr, flush=True)
    print(table(head, found))


if __name__ == "__main__":
    main()
