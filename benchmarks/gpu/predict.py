"""How well a simulation with a fitted profile predicts an engine: the same traffic through vLLM and the simulator.

    PYTHONPATH=SITE python benchmarks/gpu/predict.py --shape 8b              # one GPU; 4 minutes
    PYTHON benchmarks/gpu/predict.py --shape bundled --max-requests 8 --max-tokens 1536  # vLLM for CPUs; 5 minutes
    VLLM_CPU_OMP_THREADS_BIND=1 taskset -c 0 PYTHON benchmarks/gpu/predict.py --shape 60m --max-tokens 1024
        --max-requests 4 --output 48 -- --enforce-eager --max-num-seqs 16 --max-num-batched-tokens 1024

PYTHON needs vLLM and what this project needs; the project itself is taken from this checkout. One worker and a frontend
are started, `dynamo profile` measures them, and then traffic comes that the profile has not seen: prompts and answers
of random lengths, some with a common beginning, arriving at random, at a low and at a higher rate. The simulator gets
the same traffic, and the profile. Each rate is one line of JSON on standard output; progress goes to standard error.

The last of these has the engine on the second core alone, and steps that are long against what an operating system does
in between.

Rates are given as the share of its time that the engine would need for the prompts alone, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

import aiohttp
import uvloop

from dynamo.engines.mocker import ProfileTiming, read_profile
from dynamo.lab.profile.remote_engine import RemoteEngine
from dynamo.lab.replay.inputs import engine_of
from dynamo.router.config import RoutingConfig
from dynamo.simulate import SimulatedRequest, SimulationConfig, simulate
from figures import percentile
from gpu.compare import SHAPES, _config, environment, keep_logs, padded, say, versions
from processes import REPOSITORY, Stack
from prompts import MODEL, make_model

BAR = 0.15
BLOCK = 16
IDS = range(100, 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("bundled", *SHAPES), default="8b")
    parser.add_argument("--shares", default="0.15,0.4", help="of the time, for prompts (%(default)s)")
    parser.add_argument("--seconds", type=float, default=40, help="of traffic at each rate (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=4096, help="longest prompt (%(default)s)")
    parser.add_argument("--max-requests", type=int, default=32, help="decoded at once for the profile (%(default)s)")
    parser.add_argument("--output", type=int, default=96, help="tokens of a long answer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=400, help="seconds for an engine to start (%(default)s)")
    parser.add_argument("--logs", type=Path, help="folder for logs, profile and results")
    parser.add_argument("vllm", nargs="*", help="further flags of vLLM, after --")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    with tempfile.TemporaryDirectory(prefix="predict-") as place:
        options.logs = (options.logs or Path(place) / "logs").resolve()
        options.logs.mkdir(parents=True, exist_ok=True)
        run(Path(place), options)


def run(place: Path, options: argparse.Namespace) -> None:
    if options.shape == "bundled":
        model, flags = REPOSITORY / "src/dynamo/model/tiny", ["--enforce-eager"]
    else:
        model = padded(make_model(place / "model", **_config(options.shape)))
        flags = ["--load-format", "dummy", *(["--enforce-eager"] if options.shape == "tiny" else [])]
    flags += ["--max-model-len", str(options.max_tokens + 1024 if options.shape != "bundled" else 2048)]
    trace = options.logs / "trace.jsonl"
    rows = {"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_PATH": str(trace), "DYN_REQUEST_TRACE_CAPACITY": "9999"}
    with Stack(place / "stack", environ=environment() | rows) as stack:
        try:
            begun = time.monotonic()
            asked = ("in=dyn://bench.backend.generate", "out=vllm", str(model), "--model-name", MODEL)
            stack.start("worker", "-m", "dynamo.cli.main", *asked, "--", *flags, *options.vllm)
            stack.frontend()
            stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=options.patience)
            say(f"started in {time.monotonic() - begun:.0f} s")
            uvloop.run(warm(stack.url, options))
            profile = measured(stack, options)
            for number, share in enumerate(map(float, options.shares.split(","))):
                compare_once(stack.url, profile, share, trace, number, options)
        finally:
            keep_logs(stack.folder, options)


async def warm(url: str, options: argparse.Namespace) -> None:
    """Kernels that are made when they are first needed are there afterwards."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        engine = RemoteEngine(http, url, MODEL, options.max_tokens, options.max_tokens)
        for tokens in (16, options.max_tokens // 3, options.max_tokens):
            await engine.token_times(tokens, 4)
        await asyncio.gather(*(engine.token_times(64 + 8 * at, 16 + at) for at in range(options.max_requests)))


def measured(stack: Stack, options: argparse.Namespace) -> Path:
    """What `dynamo profile` writes; what it prints is kept beside it."""
    begun, profile = time.monotonic(), Path(options.logs, "profile.npz")
    words = ["profile", stack.url, "--output", str(profile), "--max-tokens", str(options.max_tokens)]
    words += ["--max-requests", str(options.max_requests)]
    command = [sys.executable, "-c", "from dynamo.cli.main import dynamo; dynamo()", *words]
    done = subprocess.run(command, env=stack.environ, capture_output=True, text=True, check=False)
    (options.logs / "profile.txt").write_text(done.stderr + done.stdout)
    say(done.stderr + done.stdout + f"profile took {time.monotonic() - begun:.0f} s")
    if done.returncode:
        raise SystemExit("dynamo profile failed")
    return profile


def traffic(seed: int, rate: float, options: argparse.Namespace) -> list[SimulatedRequest]:
    """Two thirds of the prompts begin like others; lengths are spread over more than a factor of ten."""
    draw = random.Random(seed)
    longest = int(0.85 * options.max_tokens)
    shared = [draw.randrange(longest // 12, longest // 3) // BLOCK for _ in range(6)]
    made, now = list[SimulatedRequest](), 0.0
    while True:
        now += draw.expovariate(rate)
        if now > options.seconds:
            return made
        group = draw.randrange(9)
        blocks = tuple((group + 1) << 12 | at for at in range(shared[group])) if group < 6 else ()
        own = min(longest - len(blocks) * BLOCK, round(draw.lognormvariate(0, 0.8) * longest / 8) + 8)
        number = (seed << 20 | len(made)) << 12
        blocks += tuple(number | 1 << 44 | at for at in range(own // BLOCK))
        made.append(
            SimulatedRequest(
                at=now,
                input_tokens=len(blocks) * BLOCK + own % BLOCK,
                output_tokens=draw.randrange(options.output // 8, options.output),
                block_ids=blocks,
                block_size=BLOCK,
                label=f"request {seed}/{len(made)}",
            )
        )


def prompt(request: SimulatedRequest, seed: int) -> list[int]:
    ids: list[int] = []
    for block in request.block_ids:
        ids += random.Random(f"{seed} {block}").choices(IDS, k=request.block_size)
    return ids + random.Random(f"{seed} {request.label}").choices(IDS, k=request.input_tokens - len(ids))


async def send(url: str, requests: Sequence[SimulatedRequest], seed: int) -> list[tuple[float, list[float]]]:
    """When each request was sent, and when each of its tokens came."""
    prompts = [prompt(request, seed) for request in requests]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        engine = RemoteEngine(http, url, MODEL, 0, 0)

        async def ask(ids: list[int], answer: int) -> tuple[float, list[float]]:
            sent = time.perf_counter()
            return sent, await engine.token_times(ids, answer)

        start, tasks = time.perf_counter(), []
        for request, ids in zip(requests, prompts, strict=True):
            assert request.at is not None
            await asyncio.sleep(max(0.0, start + request.at - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(ids, request.output_tokens)))
        return await asyncio.gather(*tasks)


def compare_once(url: str, profile: Path, share: float, trace: Path, number: int, options: argparse.Namespace) -> None:
    seed = 1000 * options.seed + number
    engine, about = engine_of({"planner_profile_data": str(profile)})
    timing = ProfileTiming(read_profile(profile), engine)
    # As many requests as fit into the share of the time: the rate depends on the mean length only.
    lengths = [request.input_tokens for request in traffic(seed + 500, 5.0, options)]
    rate = share / statistics.fmean(map(timing.prefill, lengths))
    requests = traffic(seed, rate, options)
    say(f"{len(requests)} requests at {rate:.1f}/s")
    before = len(trace.read_bytes().splitlines()) if trace.exists() else 0
    answers = uvloop.run(send(url, requests, seed))
    rows = _rows(trace, before, len(requests))
    config = SimulationConfig(
        engine=engine,
        routing=RoutingConfig(mode="round-robin"),
        frontend_seconds=(about.frontend_ms or 0.0) / 1000,
        seed=seed,
    )
    report = simulate(config, lambda: requests)
    assert report.ttft_ms
    assert report.itl_ms
    assert report.completed == len(requests)
    ttft = [1000 * (times[0] - sent) for sent, times in answers]
    tokens = sum(len(times) - 1 for _, times in answers)
    assert all(len(times) == request.output_tokens for (_, times), request in zip(answers, requests, strict=True))
    real = {
        "ttft_mean_ms": statistics.fmean(ttft),
        "ttft_p99_ms": percentile(ttft, 99),
        "itl_mean_ms": 1000 * sum(times[-1] - times[0] for _, times in answers) / tokens,
        "cached_share": sum(row["cached_tokens"] for row in rows) / sum(row["input_tokens"] for row in rows),
    }
    simulated = {
        "ttft_mean_ms": report.ttft_ms.mean,
        "ttft_p99_ms": report.ttft_ms.p99,
        "itl_mean_ms": report.itl_ms.mean,
        "cached_share": report.prefix_reuse,
    }
    errors = {name: simulated[name] / value - 1 if value else simulated[name] for name, value in real.items()}
    line = {
        "shape": options.shape, "share": share, "rate": round(rate, 2), "requests": len(requests),
        "input_tokens_mean": round(statistics.fmean(request.input_tokens for request in requests)),
        "real": _rounded(real), "simulated": _rounded(simulated),
        "error_percent": {name: round(100 * error, 1) for name, error in errors.items()},
        "within_15_percent": all(abs(error) <= BAR for error in errors.values()),
        "utilisation": round(report.utilisation, 3),
        "about": {"shared_ms": about.shared_ms, "frontend_ms": about.frontend_ms, **about.engine},
        "load": os.getloadavg()[0], "versions": versions(), "cores": os.cpu_count(),
    }  # fmt: skip
    print(json.dumps(line), flush=True)
    with (options.logs / "predict.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with (options.logs / f"requests-{number}.json").open("w") as file:
        sent = [(request.at, request.input_tokens, request.output_tokens) for request in requests]
        json.dump([[*one, times[0] - begun, times[-1] - begun]
                   for one, (begun, times) in zip(sent, answers, strict=True)], file)  # fmt: skip


def _rows(trace: Path, before: int, count: int) -> list[dict[str, Any]]:
    """The rows about the last `count` requests, once all of them are written."""
    while len(lines := trace.read_bytes().splitlines()) < before + count:
        time.sleep(0.05)
    return [json.loads(line)["request"] for line in lines[before:]]


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4 if name == "cached_share" else 2) for name, value in figures.items()}


if __name__ == "__main__":
    main()
