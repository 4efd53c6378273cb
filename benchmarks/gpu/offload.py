"""A long document asked again after it left the GPU: computed anew, or restored from host memory by `--kv-offload-gb`.

    PYTHONPATH=SITE python benchmarks/gpu/offload.py --shape 8b                     # about 3 minutes
    PYTHON benchmarks/gpu/offload.py --shape tiny --short --sides off --device cpu  # proves on a CPU that it works

Two workers, one with the flag and one without it, asked one after the other. The cache of each holds two documents.
Each document is asked three times: new (`computed`), at once again (`cached`), and after three others (`again`). One
line of JSON for each worker, also in `$OUT`:

- times until the first token, medians, with the tokens that the engine had cached by its own count;
- `again_as_cached`, `again_as_computed`: how many of the greedy answers are the same. An engine that has the whole
  prompt cached computes its last token alone, and rounds sums in another way than one that computes all of it.
- `router`: what the router's notes say of a document that is in host memory only;
- `cleared_cached_tokens`: cached tokens of a document that is asked after /clear_kv_blocks;
- vLLM's own metrics, as the worker shows them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from figures import percentile
from gpu.workers import Answer, Fleet, ask, clear, common, model, report, session, tokens
from prompts import MODEL

OTHERS = 3
"""Documents that are asked in between: more than the cache holds."""


def main() -> None:
    parser = common(__doc__)
    parser.add_argument("--sides", default="off,on", help="of %(default)s")
    parser.add_argument("--offload-gb", default="16", help="holds seven documents of the 8B shape (%(default)s)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    options.length, options.documents = (513, 2) if options.short else (16_001, 5)
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        options.model = model(Path(place) / "model", options.shape)
        fleets = {side: Fleet(Path(place) / side, options, {}) for side in options.sides.split(",")}
        try:
            for side, fleet in fleets.items():
                fleet.worker(side, *engine_flags(side, options))
            for side, fleet in fleets.items():
                fleet.until_ready(side)
            for side, fleet in fleets.items():
                asyncio.run(measure(fleet, side, options))
        finally:
            for fleet in fleets.values():
                fleet.stop()


def engine_flags(side: str, options: argparse.Namespace) -> list[str]:
    config = json.loads((options.model / "config.json").read_text())
    per_token = 4 if config.get("torch_dtype", "float32") == "float32" else 2
    per_token *= 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    flags = ["--max-model-len", str(options.length + 100)]
    flags += ["--kv-cache-memory-bytes", str(int(2.5 * options.length * per_token))]
    if options.device == "cpu":
        flags += ["--enforce-eager", "--block-size", "32"]
    else:
        flags += ["--gpu-memory-utilization", "0.3", "--max-num-seqs", "16"]
    return [*flags, "--kv-offload-gb", options.offload_gb] if side == "on" else flags


async def measure(fleet: Fleet, side: str, options: argparse.Namespace) -> None:
    url = fleet.policy(side, "--router-mode", "kv")
    seeds = count(1_000)
    asked: dict[str, list[Answer]] = {"computed": [], "cached": [], "again": []}
    async with session() as http:

        async def push_out() -> None:
            for _ in range(OTHERS):
                await ask(http, url, tokens(next(seeds), options.length), 1)

        await push_out()  # compiles, and fills the cache
        for number in range(options.documents):
            document = tokens(number, options.length)
            for name in ("computed", "cached"):
                asked[name].append(await ask(http, url, document, 16))
            await push_out()
            asked["again"].append(await ask(http, url, document, 16))
        await push_out()
        router = await notes(http, url, document)
        await clear(http, url)
        cleared = await ask(http, url, document, 1)
    times = {f"{name}_ttft_ms": 1e3 * percentile([each.ttft for each in found], 50) for name, found in asked.items()}
    cached = {f"{name}_cached_tokens": [each.cached_tokens for each in found] for name, found in asked.items()}
    report("offload", options, side=side, document=options.length, documents=options.documents, **times, **cached,
           again_as_cached=same(asked["again"], asked["cached"]),
           again_as_computed=same(asked["again"], asked["computed"]), router=router,
           cleared_cached_tokens=cleared.cached_tokens, metrics=offload_metrics(fleet.page(side)))  # fmt: skip


def same(some: list[Answer], others: list[Answer]) -> int:
    return sum(one.text == other.text for one, other in zip(some, others, strict=True))


async def notes(http: aiohttp.ClientSession, url: str, prompt: list[int]) -> Any:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "nvext": {"extra_fields": ["routing"]}}
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        return (await answer.json())["nvext"]["routing"]


def offload_metrics(page: str) -> dict[str, float]:
    lines = re.findall(r"^(vllm:(?:kv_offload|external_prefix_cache)\w+)(\{.*\})? (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, _, value in lines if "_bucket" not in name and "_created" not in name}


if __name__ == "__main__":
    main()
