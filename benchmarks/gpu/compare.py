"""Tokens per second of one vLLM engine, served in several ways: offline, by the bare AsyncLLM, by `vllm serve`, by us.

`rust` is `vllm serve` with its frontend in Rust, which is compared with `--ids --within 2`: it renders and counts chats
in another way, and clients that begin together measure how fast a wave is taken in.

    PYTHONPATH=SITE python benchmarks/gpu/compare.py --shape 0.5b       # then --shape 8b; 5 to 8 minutes each
    PYTHON benchmarks/gpu/compare.py --shape tiny --clients 4,8         # proves on a CPU that it works; 6 minutes

PYTHON needs vLLM and what this project needs (`pip install -e .`; on a machine without a network unpack the wheels into
a folder SITE); the project itself is taken from this checkout. No weights are needed: the model has a real shape,
random weights and a tokenizer made here. Every side runs in processes of its own, with the same flags of vLLM: alone,
or `--together` with the others, of which only one works at a time; then `--rounds` measures them in turns, because
single runs differ. Engines that share a GPU need `-- --gpu-memory-utilization 0.2 --kv-cache-memory-bytes N`.
`LLM.generate` takes 16,384 tokens into a step on a large GPU, the served sides 8,192: `-- --max-num-batched-tokens N`
makes them equal. With `--start-twice` every side finds its compiled code in vLLM's cache, as after any first start.

Each measurement is one line of JSON on standard output; progress goes to standard error. `engine_us_per_token` is the
CPU time of the process that talks to vLLM's engine: AsyncLLM's, the API server of `vllm serve`, our worker;
`core_us_per_token` that of the engine's own processes. Clients are a closed loop: each sends its next request when the
last one is answered, `--waves` times, after one wave to warm up. As all answers have the same length, such clients
nearly begin and end together. `offline` gets all requests at once and always has a full batch; `offline-waves` gets
them as the clients send them, one for each client at a time. `ours` publishes KV events, as it does by default;
`ours-no-events` none, as the sides that are not ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu.inside import DONE, serve_inside
from gpu.measured import cpu, cpu_below, report
from gpu.measured import versions as versions  # for the benchmarks beside this one
from processes import REPOSITORY, Stack, free_port
from prompts import MODEL, make_model

SIDES = ("offline", "async", "serve", "ours")
OURS = ("ours", "ours-no-events")
THEIRS = ("serve", "rust")
ALONE = ("offline", "offline-events", "async")
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 32},
    "60m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12,
            "num_key_value_heads": 4, "head_dim": 64, "torch_dtype": "bfloat16"},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 151_936, "tie_word_embeddings": True,
             "torch_dtype": "bfloat16"},
    "8b": {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256, "torch_dtype": "bfloat16"},
}  # fmt: skip
LOADERS = 4
"""Processes that share the clients: one alone would be the bottleneck."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument(
        "--sides",
        default=",".join(SIDES),
        help="of these and rust, ours-no-events, offline-events (%(default)s)",
    )
    parser.add_argument("--clients", default="64,256", help="at once (%(default)s)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument("--ids", action="store_true", help="clients send token ids, not chats")
    parser.add_argument("--within", type=float, default=0, help="seconds within which clients begin (%(default)s)")
    parser.add_argument("--waves", type=int, default=6, help="requests of each client (%(default)s)")
    parser.add_argument("--http-workers", type=int, default=1, help="processes of our frontend (%(default)s)")
    parser.add_argument("--patience", type=float, default=400, help="seconds for an engine to start (%(default)s)")
    parser.add_argument("--together", action="store_true", help="all sides run, and are measured in turns")
    parser.add_argument("--start-twice", action="store_true", help="start all sides once before, to compile")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each side (%(default)s)")
    parser.add_argument("--logs", type=Path, help="folder for the processes' logs")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("vllm", nargs="*", help="further flags of vLLM, after --")
    options = parser.parse_args()
    options.counts = [int(count) for count in options.clients.split(",")]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if options.inside:
        options.flags = flags(options)
        serve_inside(options)
        return
    sides = options.sides.split(",")
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        options.model = padded(make_model(Path(place) / "model", **_config(options.shape)))
        for group in [sides] if options.together else [[side] for side in sides]:
            if options.start_twice:
                compare(group, Path(place, "first"), 0, options)
            compare(group, Path(place, "measured"), options.rounds, options)


def compare(sides: Sequence[str], place: Path, rounds: int, options: argparse.Namespace) -> None:
    """Start these sides and measure them in turns."""
    with ExitStack() as running:
        begun = time.monotonic()
        started = [made(side, place, options) for side in sides]
        for each in started:
            running.enter_context(each)
        for each in started:
            each.wait()
            say(f"{each.side}: ready {time.monotonic() - begun:.0f} s after its start")
        for turn in range(rounds):
            for clients in options.counts:
                for each in started:
                    each.measure(clients, turn)


def made(side: str, place: Path, options: argparse.Namespace) -> Served | Alone:
    return (Alone if side in ALONE else Served)(side, place, options)


def _config(shape: str) -> dict[str, Any]:
    return {"rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, **SHAPES[shape]}


def padded(model: Path) -> Path:
    """The model with a tokenizer as large as its vocabulary: random weights choose any token."""
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for number in range(len(vocabulary), size):
        vocabulary[f"\u0120x{number}"] = number
    file.write_text(json.dumps(tokenizer))
    return model


def flags(options: argparse.Namespace) -> list[str]:
    most = str(max(options.counts))
    small = ["--enforce-eager", "--block-size", "32", "--kv-cache-memory-bytes", "64M"]
    rest = small if options.shape == "tiny" else []
    return ["--load-format", "dummy", "--max-model-len", "2048", "--max-num-seqs", most, *rest, *options.vllm]


def environment() -> dict[str, str]:
    path = [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


class Served:
    """`vllm serve`, or our worker and frontend, under a load of HTTP clients."""

    def __init__(self, side: str, place: Path, options: argparse.Namespace) -> None:
        self.side = side
        self._options = options
        self._folder = place / side
        self._stack = Stack(self._folder, environ=environment())
        self._begun = time.monotonic()

    def __enter__(self) -> Served:
        options, stack = self._options, self._stack
        if self.side in THEIRS:
            port = free_port()
            stack.url = f"http://127.0.0.1:{port}"
            words = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(options.model))
            if self.side == "rust":
                stack.environ["VLLM_USE_RUST_FRONTEND"] = "1"
                words = ("-m", "vllm.entrypoints.cli.main", "serve", str(options.model))
            serving = ("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port))
            self._engine = self._front = stack.start("serve", *words, *serving, *flags(options))
        else:
            asked = ("in=dyn://bench.backend.generate", "out=vllm", str(options.model), "--model-name", MODEL)
            self._engine = stack.start(
                "worker", "-m", "dynamo.cli.main", *asked, "--", *flags(options), *self._events()
            )
            workers = ("--http-workers", str(options.http_workers)) if options.http_workers > 1 else ()
            self._front = stack.frontend(*workers)
        return self

    def _events(self) -> Sequence[str]:
        return ("--kv-events-config", '{"enable_kv_cache_events": false}') if self.side == "ours-no-events" else ()

    def wait(self) -> None:
        self._stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=self._options.patience)
        self._started = time.monotonic() - self._begun
        for clients in self._options.counts:
            load(self._stack, self._folder, clients, clients, 0, self._options)

    def measure(self, clients: int, turn: int) -> None:
        options = self._options
        before = self._cpu()
        result = load(self._stack, self._folder, clients, clients * options.waves, 1 + turn, options)
        spent = [now - then for now, then in zip(self._cpu(), before, strict=True)]
        report(self.side, clients, options, start_s=self._started, **result, engine_s=spent[0], turn=turn,
               frontend_s=spent[1] if self.side not in THEIRS else None, core_s=spent[2])  # fmt: skip

    def _cpu(self) -> tuple[float, float, float]:
        frontend = cpu(self._front.pid) + cpu_below(self._front.pid)
        return cpu(self._engine.pid), frontend, cpu_below(self._engine.pid)

    def __exit__(self, *_: object) -> None:
        keep_logs(self._folder, self._options)
        self._stack.stop()


def load(
    stack: Stack, folder: Path, clients: int, requests: int, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Answers of several processes of clients that begin together, to prompts that no other seed has."""
    count = min(LOADERS, clients)
    script = str(REPOSITORY / "benchmarks" / "load.py")
    results = [folder / f"load{number}.json" for number in range(count)]
    children = [
        subprocess.Popen(
            [sys.executable, script, "--url", stack.url, "--hold", "--json", str(result),
             "--seed", str(1_000_000 * seed + 10 * clients + number),
             "--prompt", str(options.prompt), "--output", str(options.output),
             "--concurrency", str(clients // count), "--requests", str(requests // count),
             "--within", str(getattr(options, "within", 0)), *(["--ids"] if getattr(options, "ids", False) else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=stack.environ, text=True,
        )
        for number, result in enumerate(results)
    ]  # fmt: skip
    for child in children:
        assert child.stdout
        child.stdout.readline()
    for child in children:
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.close()
    for child in children:
        if child.wait():
            raise SystemExit("a load process failed")
    parts = [json.loads(result.read_text()) for result in results]
    times = [time for part in parts for time in part["times"]]
    errors = [error for part in parts for error in part["errors"]]
    if len(errors) == len(times):
        raise SystemExit(f"no request was answered: {errors[0]}")
    return {
        "tokens": sum(part["tokens"] for part in parts),
        "prompt_tokens": sum(part["prompt_tokens"] for part in parts),
        "seconds": max(ended for _, _, ended in times) - min(sent for sent, _, _ in times),
        "ttft": [first - sent for sent, first, _ in times],
        "requests": len(times),
        "errors": errors,
    }


class Alone:
    """vLLM in a process of its own, without HTTP; it reports by itself."""

    def __init__(self, side: str, place: Path, options: argparse.Namespace) -> None:
        self.side = side
        self._options = options
        self._folder = place / side
        self._log = self._folder / f"{side}.log"

    def __enter__(self) -> Alone:
        self._folder.mkdir(parents=True, exist_ok=True)
        options = self._options
        words = [
            f"--{name}={getattr(options, name)}" for name in ("shape", "clients", "prompt", "output", "waves", "model")
        ]
        if self.side == "offline-events":
            sockets = {name: f"ipc://{self._folder}/{name}" for name in ("endpoint", "replay_endpoint")}
            events = ["--kv-events-config", json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", **sockets})]
        else:
            events = []
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, __file__, f"--inside={self.side}", *words, "--", *options.vllm, *events],
                env={**os.environ, **environment()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        return self

    def wait(self) -> None:
        assert self._child.stdout
        for line in self._child.stdout:
            if line == DONE:
                return
            print(line, end="", flush=True)
        raise SystemExit(f"{self.side} failed:\n{self._log.read_text(errors='replace')[-3000:]}")

    def measure(self, clients: int, turn: int) -> None:
        assert self._child.stdin
        print(clients, turn, file=self._child.stdin, flush=True)
        self.wait()

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait()
        keep_logs(self._folder, self._options)


def keep_logs(folder: Path, options: argparse.Namespace) -> None:
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            (options.logs / f"{folder.name}-{log.name}").write_bytes(log.read_bytes())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
