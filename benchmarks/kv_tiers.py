"""Tiers of llama.cpp: a long document asked again, a working set beyond the cache, and a disk that is too slow.

    python benchmarks/kv_tiers.py [again] [working-set] [slow-disk] [--documents 8] [--tokens 2096] [--requests 40]

The model has random weights (26 million parameters, 16 KiB of KV cache per token). For the slow disk, the kernel limits
what this process reads from the real one per second (cgroup v1, as root), and files leave the page cache before each
request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.engines.llamacpp.tier_metrics import TierMetrics
from dynamo.engines.registry import EngineSpec
from dynamo.kv.messages import Tier
from dynamo.model import LocalModel
from support.asking import answer, asking
from support.gguf_writer import byte_level_metadata
from support.tiny_llama import Tensor, gguf_with_tensors, vocabulary_size
from support.waiting import until

PARTS = ("again", "working-set", "slow-disk")
THROTTLE = Path("/sys/fs/cgroup/blkio")
HIDDEN, LAYERS, HEADS, HEAD, FORWARD, CONTEXT = 512, 8, 8, 64, 1408, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, unless some are named")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2096)
    parser.add_argument("--requests", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model = random_model(Path(place) / "model.gguf")
        asyncio.run(measure(model, Path(place), options))


async def measure(model: Path, place: Path, options: Any) -> None:
    texts = [document(seed, options.tokens) for seed in range(options.documents)]
    load = os.getloadavg()[0]
    print(f"documents of {options.tokens} tokens, one thread, load of the machine {load:.1f}")
    for part in options.parts or PARTS:
        if part == "again":
            await again(model, place / "again", texts[:2])
        elif part == "working-set":
            await working_set(model, place / "set", texts, options.requests, options.tokens)
        else:
            await slow_disk(model, place / "slow", texts[:3])


async def again(model: Path, folder: Path, texts: list[list[int]]) -> None:
    """One document asked again, when another has taken its place in the cache, and after a restart."""
    one, two = texts
    room = len(one) + 512
    tiers = {"kv_offload_gb": 2.0, "kv_offload_disk_gb": 2.0, "kv_offload_dir": str(folder)}
    engine = await start(model, room, **tiers)
    computed = [await asked(engine, text) for text in texts]
    print(f"computed          {means(computed)}")
    restored = [await asked(engine, text) for text in (one, two, one, two)]
    print(f"from memory       {means(restored)}")
    figures(engine, Tier.Host)
    await engine.close()
    for name, cold in (("from disk, cached", False), ("from disk, cold  ", True)):
        if cold:
            drop_from_page_cache(folder)
        engine = await start(model, room, **tiers)
        restored = [await asked(engine, text) for text in texts]
        print(f"{name} {means(restored)}   after a restart", flush=True)
        figures(engine, Tier.Disk)
        await engine.close()


async def working_set(model: Path, folder: Path, texts: list[list[int]], requests: int, tokens: int) -> None:
    """Documents in random order through a cache that holds a quarter of them."""
    memory = {"kv_offload_gb": 2.0}
    disk = {"kv_offload_disk_gb": 2.0, "kv_offload_dir": str(folder)}
    room = len(texts) * (tokens + 64) // 4
    order = random.Random(7).choices(texts, k=requests)
    for name, tiers in (("no tier", {}), ("memory", memory), ("disk", disk)):
        engine = await start(model, room, **tiers)
        for text in texts:
            await asked(engine, text)
        rows = [await asked(engine, text) for text in order]
        share = 100 * sum(row.cached_tokens for row in rows) / sum(map(len, order))
        half = 1e3 * statistics.median(row.cpu_seconds for row in rows)
        print(f"working set of 4 caches, {name:<7}: {share:3.0f} % cached, TTFT {means(rows)}; p50 {half:.0f} ms "
              "of CPU", flush=True)  # fmt: skip
        await engine.close()


async def slow_disk(model: Path, folder: Path, texts: list[list[int]]) -> None:
    """Reading a segment takes twice as long as computing it; each request is also asked without the tier."""
    room = len(texts[0]) + 272  # for one document, and one segment that is being copied
    plain = await start(model, room)
    tiered = await start(model, room, kv_offload_disk_gb=2.0, kv_offload_dir=str(folder))
    assert tiered.tiers is not None
    store = tiered.tiers.store
    for text in texts:
        await asked(tiered, text)
    segment = store.costs[Tier.Disk].stored_bytes / (store.costs[Tier.Disk].stored_tokens / store.segment_tokens)
    computing = store.segment_tokens * (store.prefill.seconds_per_token or 0.0)
    logging.basicConfig(format="  %(levelname)s %(message)s", level=logging.INFO, stream=sys.stdout)
    times: dict[str, list[Asked]] = {"without": [], "with": []}
    with disk_read_at(folder, segment / (2 * computing)):
        rate = segment / 2e6 / computing
        print(f"slow disk: {rate:.1f} MB/s; a segment is computed in {computing:.2f} s and read in twice that time")
        for text in texts * 2:
            drop_from_page_cache(folder)
            times["without"].append(await asked(plain, text))
            times["with"].append(await asked(tiered, text))
    for name, rows in times.items():
        each = ", ".join(f"{row.seconds * 1e3:.0f}" for row in rows)
        print(f"  {name:<7} the tier: {each} ms; without the first {means(rows[1:])}")
    for family in TierMetrics(store, 16).collect():
        for sample in family.samples:
            if sample.name.startswith(("dynamo_kv_tier_worthwhile", "dynamo_kv_tier_restored_tokens")):
                print(f"  {sample.name}{sample.labels} {sample.value:g}")
    await plain.close()
    await tiered.close()


@contextlib.contextmanager
def disk_read_at(folder: Path, bytes_per_second: float) -> Iterator[None]:
    """This process reads no more per second from the disk of this folder, as if it were a slow one."""
    device = folder.stat().st_dev
    group = THROTTLE / f"kv-tiers-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(f"slow-disk needs cgroup v1 with blkio, and root: {error}") from None
    try:
        limit = group / "blkio.throttle.read_bps_device"
        limit.write_text(f"{os.major(device)}:{os.minor(device)} {int(bytes_per_second)}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (THROTTLE / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


async def start(model: Path, room: int, **arguments: Any) -> LlamaCppEngine:
    own = {"n_threads": 1, "n_ctx": room, "max_num_seqs": 4, "cached_seqs": 16, **arguments}
    engine = LlamaCppEngine(EngineSpec(model=LocalModel(source="random", path=model), extra_engine_args=own))
    await engine.start()
    await answer(engine, asking([1, 2, 3], max_tokens=1))
    return engine


class Asked(NamedTuple):
    """One request for one token."""

    seconds: float
    cpu_seconds: float
    """What this process took: the same on a machine that does other things too."""
    cached_tokens: int


async def asked(engine: LlamaCppEngine, text: list[int]) -> Asked:
    begun, used = time.perf_counter(), time.process_time()
    sink = await answer(engine, asking(text, max_tokens=1))
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - used
    usage = sink.last.completion_usage
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens", 0) if usage else 0
    await saved(engine)
    return Asked(seconds, cpu_seconds, cached)


def means(all_asked: list[Asked]) -> str:
    seconds, cpu = (1e3 * statistics.mean(column) for column in list(zip(*all_asked, strict=True))[:2])
    return f"{seconds:9.1f} ms, {cpu:9.1f} ms of CPU"


async def saved(engine: LlamaCppEngine) -> None:
    if tiers := engine.tiers:
        await until(lambda: not tiers.unsaved and not tiers.store._unwritten)


def drop_from_page_cache(folder: Path) -> None:
    for file in folder.glob("*/*.kv"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def figures(engine: LlamaCppEngine, tier: Tier) -> None:
    assert engine.tiers is not None
    costs = engine.tiers.store.costs[tier]
    print(
        f"  {costs.restored_tokens} tokens, {costs.restored_bytes / 1e6:.0f} MB, spent {costs.restore_seconds:.3f} s "
        f"(and {costs.store_seconds:.3f} s for storing), saved {costs.saved_seconds:.1f} s"
    )


def document(seed: int, tokens: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(10, vocabulary_size() - 10) for _ in range(tokens)]


def random_model(path: Path) -> Path:
    rng = np.random.default_rng(0)

    def normal(*shape: int, std: float = 0.05) -> Tensor:
        return Tensor(shape, array("f", (rng.standard_normal(shape) * std).astype(np.float32).tobytes()))

    ones = Tensor((HIDDEN,), array("f", [1.0] * HIDDEN))
    vocabulary = vocabulary_size()
    tensors = {"token_embd.weight": normal(vocabulary, HIDDEN), "output.weight": normal(vocabulary, HIDDEN)}
    tensors["output_norm.weight"] = ones
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{at}{name}.weight"] = normal(HIDDEN, HIDDEN)
        tensors |= {f"{at}ffn_gate.weight": normal(FORWARD, HIDDEN), f"{at}ffn_up.weight": normal(FORWARD, HIDDEN)}
        tensors |= {f"{at}ffn_down.weight": normal(HIDDEN, FORWARD), f"{at}attn_norm.weight": ones}
        tensors[f"{at}ffn_norm.weight"] = ones
    config = {
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD,
        "llama.attention.key_length": HEAD,
        "llama.attention.value_length": HEAD,
        "llama.vocab_size": vocabulary,
        "general.alignment": 32,
        "general.file_type": 0,
    }
    path.write_bytes(gguf_with_tensors(byte_level_metadata() | config, tensors))
    return path


if __name__ == "__main__":
    main()
