"""Routing to real vLLM engines: share of cached tokens, TTFT, and whether the router's index is what they hold.

usage: python benchmarks/vllm_routing.py [--python PYTHON] [--workers 2] [--modes kv,round-robin] [-- VLLM FLAGS]

The engines are workers with `out=vllm` and random weights, run by an interpreter that has vLLM beside our own
dependencies. They keep running while each mode starts a frontend of its own, and their caches are cleared before each
run. The conversations are those of conversations.py: canned histories, staggered starts, exponential thinking time,
drawn from a seed.

Two things are checked. For each request: the tokens that the router expected to be cached at its choice, against those
vLLM found cached. One request at a time (--serial) they must agree; with many at once they may differ by what was
stored ("more") or evicted ("less") in between. After each run: the blocks each vLLM holds according to all its events,
replayed from the first, against a router that has listened all along. Every difference is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
import zmq
import zmq.asyncio
from msgspec import Struct
from tokenizers import Tokenizer

from dynamo.kv.hashing import sequence_hashes
from dynamo.llm import KvRouter, compute_block_hash_for_seq
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from figures import percentile, table
from kv_placement import Variant
from load import Reply, Users, connect, requests
from processes import REPOSITORY, Stack, metric_total
from prompts import MODEL, Prompts, make_model
from workload import Conversation, Workload, converse, uneven_tokens

MODES = {
    "kv": ("--router-mode", "kv"),
    "kv-without-copies": ("--router-mode", "kv", "--no-router-copy-prefixes"),
    "approximate": ("--router-mode", "kv", "--use-kv-events", "false"),
    **{name: ("--router-mode", name) for name in ("round-robin", "random", "least-loaded", "power-of-two")},
}
END = b"\xff" * 8
ENDPOINT = "vllm.backend.generate"
PAUSE = 0.1
"""Seconds between requests with --serial: more than an event needs to arrive."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 32},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 64, "torch_dtype": "bfloat16"},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
           "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "bfloat16"},
}  # fmt: skip


class Run(Struct):
    """One run, as --json writes it. Times in milliseconds."""

    mode: str
    round: int
    cached: float
    optimum: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    uneven_tokens: float
    requests: int
    errors: int
    exact: int
    """Requests for which the engine found cached what the router knew to be cached, or to be in computation."""
    more: int
    less: int
    held: list[int]
    """Blocks each engine held at the end, according to its events."""
    unknown: int
    """Blocks an engine held that were not in the router's index."""
    imagined: int
    """Blocks in the router's index that the engine did not hold."""
    seconds: float
    ahead: float
    """Prompt tokens computed ahead on idle workers, in percent of all."""


class Engine:
    """The blocks one vLLM holds according to its events, all of them applied in the simplest way."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._next = 0
        self._times: Counter[int] = Counter()
        self._sequences: dict[int, int] = {}

    @property
    def held(self) -> dict[int, int]:
        """Our hash of the whole prefix, by vLLM's hash of the block."""
        return {name: self._sequences[name] for name in self._times}

    async def catch_up(self, context: zmq.asyncio.Context) -> None:
        while batches := await self._replay(context):
            for number, payload in batches:
                if number > self._next:
                    break
                for event in msgspec.msgpack.decode(payload)[1]:
                    self._apply(event)
                self._next += 1
            else:
                return

    async def _replay(self, context: zmq.asyncio.Context) -> list[tuple[int, bytes]]:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(self._address)
            await socket.send_multipart([b"", self._next.to_bytes(8, "big")])
            batches: list[tuple[int, bytes]] = []
            # The end mark may be dropped like the rest of what vLLM's socket cannot hold.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    while (frames := await socket.recv_multipart())[-2] != END:
                        batches.append((int.from_bytes(frames[-2], "big"), frames[-1]))
        if batches and batches[0][0] != self._next:
            raise SystemExit(f"vLLM at {self._address} no longer has batch {self._next}")
        return batches

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "BlockStored":
                parent = event["parent_block_hash"]
                local = compute_block_hash_for_seq(event["token_ids"], event["block_size"])
                chain = sequence_hashes(local, None if parent is None else self._sequences[parent])
                self._sequences.update(zip(event["block_hashes"], chain, strict=True))
                self._times.update(event["block_hashes"])
            case "BlockRemoved":
                for name in event["block_hashes"]:
                    self._times[name] -= 1
                    if not self._times[name]:
                        del self._times[name]
            case "AllBlocksCleared":
                self.clear()

    def clear(self) -> None:
        self._times.clear()


class Fleet:
    """The engines of a stack, and a router that listens to their events independently of the frontends."""

    def __init__(self, stack: Stack, runtime: DistributedRuntime, block: int) -> None:
        self.engines: dict[int, Engine] = {}
        self._stack = stack
        self._router = KvRouter(runtime.endpoint(ENDPOINT), block)
        self._context = zmq.asyncio.Context()

    async def join(self, workers: int, seconds: float) -> None:
        """Wait until all engines serve."""
        serving = re.compile(rf"serving dyn://{re.escape(ENDPOINT)} as instance ([0-9a-f]+)")
        deadline = time.monotonic() + seconds
        for number in range(workers):
            child = self._stack.children[f"worker{number}"]
            while not (found := serving.search(child.log.read_text(errors="replace"))):
                child.check()
                if time.monotonic() > deadline:
                    raise SystemExit(f"{child.name} is not up after {seconds:g} s:\n{child.output()}")
                await asyncio.sleep(0.2)
            self.engines[int(found[1], 16)] = Engine(f"ipc://{self._stack.folder}/worker{number}.replay")

    async def differences(self, patience: float = 5.0) -> tuple[list[str], list[int], int, int]:
        """Descriptions of all differences; blocks held per engine; and the numbers of unknown and imagined blocks."""
        deadline = time.monotonic() + patience
        while True:
            known: dict[int, set[int]] = {worker: set() for worker in self.engines}
            for one in json.loads(await self._router.dump_events()):
                (block,) = one["event"]["data"]["stored"]["blocks"]
                known[one["worker_id"]].add(block["sequence_hash"])
            for engine in self.engines.values():
                await engine.catch_up(self._context)
            lines, unknown, imagined = [], 0, 0
            for worker, engine in self.engines.items():
                held, believed = set(engine.held.values()), known[worker]
                unknown += len(held - believed)
                imagined += len(believed - held)
                lines += [
                    f"worker {worker:x} holds block {block:x}, unknown to the router" for block in held - believed
                ]
                lines += [f"worker {worker:x} does not hold block {block:x}" for block in believed - held]
            if not lines or time.monotonic() > deadline:
                return lines, [len(engine.held) for engine in self.engines.values()], unknown, imagined
            await asyncio.sleep(0.2)

    async def clear(self) -> None:
        """Note that all caches were cleared: an idle engine publishes that event only with its next step."""
        for engine in self.engines.values():
            await engine.catch_up(self._context)
            engine.clear()

    def close(self) -> None:
        self._context.destroy(linger=0)


def worker_flags(number: int, folder: Path, model: Path, options: argparse.Namespace) -> list[str]:
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/worker{number}.events",
        "replay_endpoint": f"ipc://{folder}/worker{number}.replay",
        "buffer_steps": 1_000_000,
    }
    return [
        "-m", "dynamo.cli.main", f"in=dyn://{ENDPOINT}", "out=vllm", str(model), "--model-name", MODEL, "--",
        "--load-format", "dummy", "--block-size", str(options.block_size),
        "--num-gpu-blocks-override", str(options.blocks), "--kv-events-config", json.dumps(events), *options.vllm,
    ]  # fmt: skip


async def warm_up(url: str, workers: int, tokens: int) -> None:
    """Each engine computes a few prompts: its first ones take longer."""
    users, prompts = Users(url), Prompts(0)
    await users.open(workers)
    await users.run(requests(prompts, 4 * workers, tokens, 8, stream=True), stream=True)
    users.close()


async def one_at_a_time(url: str, conversations: Sequence[Conversation], limit: int) -> list[Reply]:
    """The first turns of all conversations, then the second ones, and so on."""
    connection = await connect(url)
    replies = []
    turns = range(len(conversations[0].bodies))
    bodies = [conversation.bodies[turn] for turn in turns for conversation in conversations]
    for body in bodies[:limit]:
        if not connection.open:
            connection = await connect(url)
        replies.append(await connection.ask(body, stream=True))
        await asyncio.sleep(PAUSE)
    connection.close()
    return replies


def deviation(reply: Reply, block: int) -> int:
    """Tokens found cached beyond what the router expected, or (negative) below it.

    It expects at least what is cached there, and at most that plus what is being computed for other requests.
    """
    assert reply.chosen
    usable = (reply.prompt_tokens - 1) // block * block  # the last token is computed in any case
    least: int = min(reply.chosen["overlap_blocks"] * block, usable)
    most: int = max(least, min(reply.prompt_tokens - reply.chosen["prefill_tokens"], usable))
    return min(0, reply.cached_tokens - least) or max(0, reply.cached_tokens - most)


def mismatches(replies: Sequence[Reply], block: int) -> list[str]:
    return [
        f"request {at} of {reply.prompt_tokens} tokens: worker {reply.worker:x} had {reply.cached_tokens} cached; "
        f"the router knew of {reply.chosen['overlap_blocks'] * block}, expected {reply.chosen['prefill_tokens']} to "
        f"compute and {reply.chosen['requests']} requests beside it"
        for at, reply in enumerate(sorted(replies, key=lambda reply: reply.sent))
        if reply.error is None and reply.chosen and deviation(reply, block)
    ]


def clear(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{url}/clear_kv_blocks", method="POST")) as answer:
        result = json.load(answer)
    if result.get("failed_workers") or not result.get("cleared_workers"):
        raise SystemExit(f"the caches could not be cleared: {result}")
    time.sleep(1)


def start_frontend(stack: Stack, mode: str, workers: int) -> None:
    """Start a new frontend and clear the engines' caches."""
    stack.frontend(*MODES[mode])
    stack.until("/v1/models", f'"{MODEL}"'.encode())
    while len({one["instance_id"] for one in json.loads(stack.get("/health"))["instances"]}) < workers:
        time.sleep(0.05)
    clear(stack.url)


async def measure(fleet: Fleet, stack: Stack, mode: str, number: int, work: Workload, options: Any) -> Run:
    await asyncio.to_thread(start_frontend, stack, mode, options.workers)
    await fleet.clear()
    if mode == "kv" and number == 0 and options.serial:
        replies = await one_at_a_time(stack.url, work.conversations, options.serial)
        wrong = mismatches(replies, options.block_size)
        errors = sum(reply.error is not None for reply in replies)
        cached = sum(reply.cached_tokens for reply in replies) / max(1, sum(reply.prompt_tokens for reply in replies))
        exact = f"{len(replies) - errors - len(wrong)} as the router expected"
        print(f"one at a time: {len(replies)} requests, {errors} errors, {cached:.1%} cached, {exact}")
        show(wrong)
        show((await fleet.differences())[0])
        await asyncio.to_thread(clear, stack.url)
        await fleet.clear()
    began = time.monotonic()
    replies = await converse([stack.url], work.conversations)
    took = time.monotonic() - began
    wrong, held, unknown, imagined = await fleet.differences()
    ahead = options.block_size * metric_total(stack.url, "dynamo_component_router_copied_blocks_total")
    stack.stop("frontend")
    good = [reply for reply in replies if reply.error is None]
    for error in {reply.error for reply in replies if reply.error}:
        print(f"    {error}", file=sys.stderr)
    if len(good) == len(replies) and sum(reply.prompt_tokens for reply in good) != work.prompt_tokens:
        print(f"    prompts were not counted as {work.prompt_tokens} tokens", file=sys.stderr)
    show(mismatches(good, options.block_size) + wrong)
    compared = [deviation(reply, options.block_size) for reply in good if reply.chosen]
    ttft = [1e3 * (reply.first - reply.sent) for reply in good]
    return Run(
        mode=mode,
        round=number,
        cached=100 * sum(reply.cached_tokens for reply in good) / max(1, sum(reply.prompt_tokens for reply in good)),
        optimum=100 * work.optimum,
        ttft_mean=statistics.fmean(ttft) if ttft else float("nan"),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        uneven_tokens=uneven_tokens(good, options.workers),
        requests=len(good),
        errors=len(replies) - len(good),
        exact=sum(by == 0 for by in compared),
        more=sum(by > 0 for by in compared),
        less=sum(by < 0 for by in compared),
        held=held,
        unknown=unknown,
        imagined=imagined,
        seconds=took,
        ahead=100 * ahead / max(1, sum(reply.prompt_tokens for reply in good)),
    )


def show(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"    {line}", file=sys.stderr)


def report(runs: Sequence[Run]) -> str:
    rows = [
        [
            f"{run.mode}",
            f"{run.cached:.1f} of {run.optimum:.1f}",
            f"{run.ahead:.1f}",
            f"{run.ttft_mean:.1f}",
            f"{run.ttft_p50:.1f}",
            f"{run.ttft_p99:.1f}",
            f"{run.uneven_tokens:.2f}",
            f"{run.exact} / {run.more} / {run.less}" if run.exact + run.more + run.less else "–",
            f"{sum(run.held)}: {run.unknown} / {run.imagined}",
            f"{run.requests}",
            f"{run.errors}",
            f"{run.seconds:.0f}",
        ]
        for run in runs
    ]
    head = ["mode", "cached %", "ahead %", "TTFT mean", "p50", "p99", "tokens max/mean", "exact / more / less"]
    return table([*head, "blocks held: unknown / imagined", "requests", "errors", "s"], rows)


async def run_all(stack: Stack, work: Workload, options: argparse.Namespace) -> list[Run]:
    runs: list[Run] = []
    async with DistributedRuntime(config=RuntimeConfig.from_env(stack.environ)) as runtime:
        fleet = Fleet(stack, runtime, options.block_size)
        try:
            began = time.monotonic()
            await fleet.join(options.workers, options.patience)
            print(f"{options.workers} engines up after {time.monotonic() - began:.0f} s", flush=True)
            await asyncio.to_thread(start_frontend, stack, "round-robin", options.workers)
            await warm_up(stack.url, options.workers, options.system_tokens)
            stack.stop("frontend")
            modes = options.modes.split(",")
            for number in range(options.rounds):
                for mode in modes if number % 2 == 0 else modes[::-1]:
                    run = await measure(fleet, stack, mode, number, work, options)
                    runs.append(run)
                    line = f"{mode}: cached {run.cached:.1f} of {run.optimum:.1f} %, TTFT {run.ttft_mean:.1f}, "
                    print(f"{line}p99 {run.ttft_p99:.1f}, {run.errors} errors", file=sys.stderr, flush=True)
                    if options.json:
                        with options.json.open("ab") as file:
                            file.write(msgspec.json.encode(run) + b"\n")
        finally:
            fleet.close()
    return runs


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", default=os.environ.get("VLLM_PYTHON", sys.executable), help="that has vLLM (VLLM_PYTHON, this one)"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--modes", default="kv,round-robin,approximate", help=f"of {', '.join(MODES)} (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="every second one runs the modes backwards")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="of the model (%(default)s)")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=256, help="blocks in an engine's cache (%(default)s)")
    parser.add_argument("--systems", type=int, default=6, help="system prompts (%(default)s)")
    parser.add_argument("--system-tokens", type=int, default=1000, help="tokens of each (%(default)s)")
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--stagger", type=float, default=0.2, help="seconds between conversations (%(default)s)")
    parser.add_argument("--think", type=float, default=1.0, help="seconds between turns, in the mean (%(default)s)")
    parser.add_argument("--serial", type=int, default=40, help="requests one at a time first, in kv mode (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=300, help="seconds for the engines to start (%(default)s)")
    parser.add_argument("--logs", type=Path, help="folder for copies of the processes' logs")
    parser.add_argument("--json", type=Path, help="append every run to this file, a line each")
    parser.add_argument("vllm", nargs="*", help="further flags of vLLM, after --")
    return parser.parse_args()


def main() -> None:
    options = parse()
    variant = Variant(
        "vllm", options.blocks, stagger=options.stagger, think=options.think, system_tokens=options.system_tokens,
        systems=options.systems, convs=options.conversations, turns=options.turns, workers=options.workers,
    )  # fmt: skip
    environ = {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]),
        "DYN_LOG": "warn,dynamo.runtime.endpoint=info",
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as place, contextlib.ExitStack() as cleanup:
        folder = Path(place)
        model = make_model(folder / "model", rms_norm_eps=1e-5, hidden_act="silu", **SHAPES[options.shape])
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        work = Workload(
            variant, options.seed, tokenizer, block=options.block_size, extra_fields=("worker_id", "routing")
        )
        with Stack(folder, environ=environ) as stack:
            if options.logs:
                cleanup.callback(lambda: [shutil.copy(log, options.logs) for log in folder.glob("*.log")])
            for number in range(options.workers):
                stack.start(f"worker{number}", *worker_flags(number, folder, model, options), python=options.python)
            runs = uvloop.run(run_all(stack, work, options))
    print(report(runs))
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{time.strftime('%Y-%m-%d %H:%M')}, seed {options.seed}, {load}")


if __name__ == "__main__":
    main()
