"""Throughput and CPU time per token of `out=llamacpp` beside llama-server, on the same model and threads.

    python benchmarks/llamacpp.py MODEL.gguf [--sequences 16] [--tokens 128] [--prompt 64] [--rounds 5]
    python benchmarks/llamacpp.py --make 8x512 FILE.gguf     # a model with random weights: layers x hidden size

llama-server runs inside the wheel of xllamacpp, the same library that the engine uses. Each of them is a process of its
own, idle while the other one is measured; rounds alternate. Tokens are greedy, prompts differ, nothing is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp


class Round:
    """The prompts of one round, as token ids."""

    def __init__(self, number: int, sequences: int, prompt: int, tokens: int, vocabulary: int) -> None:
        self.tokens = tokens
        self.prompts = [
            [(7 + at * 31 + number * 101 + place * 13) % (vocabulary - 10) + 5 for place in range(prompt)]
            for at in range(sequences)
        ]


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def ours(pipe: Connection, model: Path, threads: int, sequences: int) -> None:
    from dynamo.engines.llamacpp.engine import LlamaCppEngine
    from dynamo.engines.registry import EngineSpec
    from dynamo.model import LocalModel
    from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, StopConditions

    class Counting:
        def __init__(self) -> None:
            self.count = 0
            self.done = asyncio.get_running_loop().create_future()

        def tokens(self, ids: list[int]) -> None:
            self.count += len(ids)

        def item(self, value: Any) -> None:
            self.count += len(value.token_ids)

        def end(self) -> None:
            self.done.set_result(None)

        def fail(self, error: Exception) -> None:
            self.done.set_exception(error)

    async def serve() -> None:
        args = {"n_threads": threads, "max_num_seqs": sequences, "n_ctx": 8192}
        local = LocalModel(source=str(model), path=model)
        engine = LlamaCppEngine(EngineSpec(model=local, extra_engine_args=args))
        await engine.start()
        pipe.send(engine._vocab_size)
        while (round_ := await asyncio.to_thread(pipe.recv)) is not None:
            await engine.clear_cache()
            begun, cpu = time.perf_counter(), cpu_seconds()
            sinks = []
            for prompt in round_.prompts:
                sinks.append(Counting())
                request = PreprocessedRequest(
                    token_ids=prompt,
                    sampling_options=SamplingOptions(temperature=0.0),
                    stop_conditions=StopConditions(max_tokens=round_.tokens, ignore_eos=True),
                )
                engine.generate(request, sinks[-1])
            await asyncio.gather(*(sink.done for sink in sinks))
            pipe.send((sum(sink.count for sink in sinks), time.perf_counter() - begun, cpu_seconds() - cpu))
        await engine.close()

    asyncio.run(serve())


def llama_server(pipe: Connection, model: Path, threads: int, sequences: int) -> None:
    import xllamacpp

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stderr.fileno())
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.kv_unified = 8192, sequences, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.port = 0
    server = xllamacpp.Server(params)
    pipe.send(server.listening_address)
    while pipe.recv() is not None:
        begun = cpu_seconds()
        pipe.recv()
        pipe.send(cpu_seconds() - begun)


async def ask_server(address: str, round_: Round) -> tuple[int, float]:
    """Streams, as a frontend would read them; the client's own work is not counted as the server's."""
    count = 0

    async def one(session: aiohttp.ClientSession, prompt: list[int]) -> None:
        nonlocal count
        body = {
            "prompt": prompt, "n_predict": round_.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        async with session.post(f"{address}/completion", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                count += line.startswith(b"data: ") and b'"stop":false' in line

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begun = time.perf_counter()
        await asyncio.gather(*(one(session, prompt) for prompt in round_.prompts))
        return count, time.perf_counter() - begun


def started(target: Any, *arguments: Any) -> tuple[Connection, Any]:
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=target, args=(there, *arguments), daemon=True).start()
    return here, here.recv()


def measure(options: argparse.Namespace) -> None:
    model = Path(options.model).resolve()
    engine, vocabulary = started(ours, model, options.threads, options.sequences)
    server, address = started(llama_server, model, options.threads, options.sequences)
    results: dict[str, list[tuple[float, float]]] = {"out=llamacpp": [], "llama-server": []}
    for number in range(options.rounds + 1):
        round_ = Round(number, options.sequences, options.prompt, options.tokens, vocabulary)
        engine.send(round_)
        tokens, seconds, cpu = engine.recv()
        server.send("begin")
        count, waited = asyncio.run(ask_server(address, round_))
        server.send("end")
        spent = server.recv()
        if number:  # the first round warms both up
            results["out=llamacpp"].append((tokens / seconds, cpu / tokens * 1e6))
            results["llama-server"].append((count / waited, spent / count * 1e6))
    for pipe in (engine, server):
        pipe.send(None)
    print(
        f"{model.name}, {options.threads} thread(s), {options.sequences} x {options.prompt} -> {options.tokens} tokens"
    )
    for name, rounds in results.items():
        speed, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        best = max(speed for speed, _ in rounds)
        print(f"{name:14} {speed:8.0f} tok/s (best {best:.0f})   {cpu:8.1f} us CPU per token")
    pairs = zip(results["out=llamacpp"], results["llama-server"], strict=True)
    ratios = [(one[0] / other[0], other[1] / one[1]) for one, other in pairs]
    speed, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"ratio          {speed:.2f} x tokens per second, {cpu:.2f} x tokens per CPU second (median of rounds)")


def make(shape: str, path: Path) -> None:
    """A Llama with random f16 weights and the bundled model's vocabulary."""
    import gguf
    import numpy as np

    from dynamo.model.bundled import bundled

    layers, hidden = map(int, shape.split("x"))
    heads, feed = hidden // 64, hidden * 3
    reader = gguf.GGUFReader(bundled() / "tiny.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(vocabulary)
    draw = np.random.default_rng(0)

    def add(name: str, *size: int) -> None:
        writer.add_tensor(name, (draw.standard_normal(size) / size[-1] ** 0.5).astype(np.float16))

    add("token_embd.weight", vocabulary, hidden)
    add("output.weight", vocabulary, hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for at in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{at}.{name}.weight", hidden, hidden)
        for name, *size in (("ffn_gate", feed, hidden), ("ffn_up", feed, hidden), ("ffn_down", hidden, feed)):
            add(f"blk.{at}.{name}.weight", *size)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{at}.{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--make", metavar="LAYERSxHIDDEN")
    for flag, default in (("sequences", 16), ("tokens", 128), ("prompt", 64), ("rounds", 5), ("threads", 1)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    given = parser.parse_args()
    if given.make:
        make(given.make, Path(given.model))
        sys.exit()
    measure(given)
