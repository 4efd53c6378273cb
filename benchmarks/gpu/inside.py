"""vLLM without HTTP, in the process that was started for it; it measures what it reads from standard input."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu.measured import cpu_below, report
from prompts import Prompts

DONE = "done\n"


def serve_inside(options: argparse.Namespace) -> None:
    # Only lines of results may reach standard output; vLLM logs there.
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(out, "w")
    from dynamo.engines.vllm.environment import installed, prepare

    prepare(os.environ, installed(), options.vllm)
    measure = (bare_async if options.inside == "async" else offline)(options)
    print(DONE, end="", flush=True)
    for line in sys.stdin:
        measure(*map(int, line.split()))
        print(DONE, end="", flush=True)


def token_prompts(options: argparse.Namespace, count: int, seed: int) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    made = Prompts(seed)
    return [tokenizer.encode(made.next(options.prompt)).ids for _ in range(count)]


def engine_arguments(options: argparse.Namespace) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", str(options.model), *options.flags]))


def offline(options: argparse.Namespace) -> Callable[[int, int], None]:
    """What the engine can do at best, with as many requests running as there are clients elsewhere."""
    from vllm import LLM, SamplingParams

    args = vars(engine_arguments(options))
    names = ("model", "load_format", "max_model_len", "max_num_seqs", "dtype", "enforce_eager", "block_size",
             "kv_cache_memory_bytes", "gpu_memory_utilization", "max_num_batched_tokens",
             "kv_events_config")  # fmt: skip
    begun = time.monotonic()
    llm = LLM(**{name: args[name] for name in names if args.get(name) is not None})
    started = time.monotonic() - begun
    params = SamplingParams(max_tokens=options.output, ignore_eos=True)

    def generate(side: str, clients: int, batches: Sequence[Sequence[Any]], turn: int) -> None:
        llm.reset_prefix_cache()
        begun, cpu = time.monotonic(), cpu_below(os.getpid())
        outputs = [output for batch in batches for output in llm.generate(batch, params, use_tqdm=False)]
        seconds = time.monotonic() - begun
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        report(side, clients, options, start_s=started, tokens=tokens, seconds=seconds, requests=len(outputs),
               turn=turn, core_s=cpu_below(os.getpid()) - cpu)  # fmt: skip

    def measure(clients: int, turn: int) -> None:
        prompts = token_prompts(options, clients * options.waves, 1 + turn)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        if clients == most and not turn:
            generate(options.inside, clients, [inputs], turn)
        generate(
            f"{options.inside}-waves",
            clients,
            [inputs[at : at + clients] for at in range(0, len(inputs), clients)],
            turn,
        )

    most = max(options.counts)
    warming = token_prompts(options, most, 0)
    llm.generate([{"prompt_token_ids": prompt} for prompt in warming], params, use_tqdm=False)
    return measure


def bare_async(options: argparse.Namespace) -> Callable[[int, int], None]:
    import uvloop
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    begun = time.monotonic()
    llm = AsyncLLM.from_engine_args(engine_arguments(options))
    started = time.monotonic() - begun
    params = SamplingParams(max_tokens=options.output, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    async def client(number: int, pending: list[list[int]], ttft: list[float]) -> int:
        tokens = 0
        while pending:
            prompt, sent, first = pending.pop(), time.monotonic(), 0.0
            async for output in llm.generate({"prompt_token_ids": prompt}, params, f"{number}-{len(pending)}-{sent}"):
                first = first or time.monotonic()
                tokens += len(output.outputs[0].token_ids)
            ttft.append(first - sent)
        return tokens

    async def wave(clients: int, pending: list[list[int]]) -> tuple[int, list[float]]:
        ttft = list[float]()
        counted = await asyncio.gather(*(client(number, pending, ttft) for number in range(clients)))
        return sum(counted), ttft

    def measure(clients: int, turn: int) -> None:
        prompts = token_prompts(options, clients * options.waves, 1 + turn)
        begun, cpu, core = time.monotonic(), time.process_time(), cpu_below(os.getpid())
        tokens, ttft = loop.run(wave(clients, prompts))
        report("async", clients, options, start_s=started, tokens=tokens, seconds=time.monotonic() - begun, turn=turn,
               ttft=ttft, requests=len(ttft), engine_s=time.process_time() - cpu,
               core_s=cpu_below(os.getpid()) - core)  # fmt: skip

    most = max(options.counts)
    loop.run(wave(most, token_prompts(options, most, 0)))
    return measure
