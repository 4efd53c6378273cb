"""Tiers of llama.cpp: a long document asked again, a working set beyond the cache, and a disk that is too slow.

    python benchmarks/kv_tiers.py [--documents 8] [--tokens 2096] [--requests 40]

The model has random weights (26 million parameters, 16 KiB of KV cache per token). "slow" is simulated: each read of a
segment sleeps first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.engines.registry import EngineSpec
from dynamo.model import LocalModel
from dynamo.protocols.kv import Tier
from dynamo.tiers import FolderTier, KvSegment
from support.asking import answer, asking
from support.gguf_writer import byte_level_metadata
from support.tiny_llama import Tensor, gguf_with_tensors, vocabulary_size
from support.waiting import until

HIDDEN, LAYERS, HEADS, HEAD, FORWARD, CONTEXT = 512, 8, 8, 64, 1408, 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
    print(f"documents of {options.tokens} tokens, one thread, load of the machine {load:.0f}")
    await again(model, place / "again", texts[:2])
    await working_set(model, texts, options.requests, options.tokens)
    await slow_disk(model, place / "slow", texts)


async def again(model: Path, folder: Path, texts: list[list[int]]) -> None:
    """One document asked again, when another has taken its place in the cache, and after a restart."""
    one, two = texts
    room = len(one) + 512
    tiers = {"kv_offload_gb": 2.0, "kv_offload_disk_gb": 2.0, "kv_offload_dir": str(folder)}
    engine = await start(model, room, **tiers)
    computed = [await asked(engine, text) for text in texts]
    print(f"computed          {statistics.mean(computed) * 1e3:9.1f} ms")
    restored = [await asked(engine, text) for text in (one, two, one, two)]
    print(f"from memory       {statistics.mean(restored) * 1e3:9.1f} ms")
    figures(engine, Tier.Host)
    await engine.close()
    for name, cold in (("from disk, cached", False), ("from disk, cold  ", True)):
        if cold:
            drop_from_page_cache(folder)
        engine = await start(model, room, **tiers)
        restored = [await asked(engine, text) for text in texts]
        print(f"{name} {statistics.mean(restored) * 1e3:9.1f} ms   after a restart")
        figures(engine, Tier.Disk)
        await engine.close()


async def working_set(model: Path, texts: list[list[int]], requests: int, tokens: int) -> None:
    """Documents in random order through a cache that holds a quarter of them."""
    room = len(texts) * (tokens + 64) // 4
    order = random.Random(7).choices(texts, k=requests)
    for name, tiers in (("without", {}), ("with", {"kv_offload_gb": 2.0})):
        engine = await start(model, room, **tiers)
        for text in texts:
            await asked(engine, text)
        times, hits = [], 0
        for text in order:
            begun = time.perf_counter()
            sink = await answer(engine, asking(text, max_tokens=1))
            times.append(time.perf_counter() - begun)
            usage = sink.last.completion_usage
            hits += (usage.prompt_tokens_details or {}).get("cached_tokens", 0) if usage else 0
            await saved(engine)
        share = 100 * hits / sum(map(len, order))
        print(
            f"working set of 4 caches, {name:<7} tiers: {share:3.0f} % of tokens cached, TTFT p50 "
            f"{statistics.median(times) * 1e3:.0f} ms, mean {statistics.mean(times) * 1e3:.0f} ms"
        )
        await engine.close()


class SlowFolder(FolderTier):
    seconds = 0.0

    def read(self, key: int) -> KvSegment | None:
        time.sleep(self.seconds)
        return super().read(key)


async def slow_disk(model: Path, folder: Path, texts: list[list[int]]) -> None:
    """Each read takes twice as long as computing the segment."""
    tiers = {"kv_offload_disk_gb": 2.0, "kv_offload_dir": str(folder)}
    engine = await start(model, len(texts[0]) + 512, **tiers)
    computed = [await asked(engine, text) for text in texts[:4]]
    assert engine.tiers is not None
    store = engine.tiers.store
    assert store.folder is not None
    store.folder.__class__ = SlowFolder
    SlowFolder.seconds = 2 * store.segment_tokens * statistics.mean(computed) / len(texts[0])
    times = [await asked(engine, text) for text in texts[:4] * 2]
    costs = store.costs[Tier.Disk]
    print(f"slow disk: computed {statistics.mean(computed) * 1e3:.0f} ms; then, in order:")
    print("  " + ", ".join(f"{each * 1e3:.0f}" for each in times) + " ms")
    print(f"  used: {costs.worthwhile(store.prefill)}, tokens restored {costs.restored_tokens}")
    await engine.close()


async def start(model: Path, room: int, **arguments: Any) -> LlamaCppEngine:
    own = {"n_threads": 1, "n_ctx": room, "max_num_seqs": 4, "cached_seqs": 16, **arguments}
    engine = LlamaCppEngine(EngineSpec(model=LocalModel(source="random", path=model), extra_engine_args=own))
    await engine.start()
    await answer(engine, asking([1, 2, 3], max_tokens=1))
    return engine


async def asked(engine: LlamaCppEngine, text: list[int]) -> float:
    begun = time.perf_counter()
    await answer(engine, asking(text, max_tokens=1))
    seconds = time.perf_counter() - begun
    await saved(engine)
    return seconds


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
