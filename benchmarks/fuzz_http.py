"""Send thousands of mutated bodies to a server in this process; expect only documented answers and constant memory.

python benchmarks/fuzz_http.py [--bodies 20000] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dynamo.llm import ModelType
from support.bodies_mutated import PATHS, allowed, mutated_body
from support.toys import Live, Scripted, embed_tokens, toy_card, toy_folder


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def main(bodies: int, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        model = toy_folder(Path(folder) / "toy")
        engine = Scripted()
        async with Live() as live:
            await live.serve(engine.generate, toy_card(model, "toy", guided_decoding=True))
            await live.serve(embed_tokens, toy_card(model, "embed", ModelType.Embedding), "toy.embed.generate")
            statuses: Counter[tuple[str, int]] = Counter()
            wrong: list[str] = []

            async def send(count: int) -> None:
                for _ in range(count):
                    path = rng.choice(list(PATHS))
                    body = mutated_body(rng, path)
                    async with live.http.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
                        text = await answer.text()
                        statuses[path, answer.status] += 1
                        if not allowed(path, answer.status, text):
                            wrong.append(f"{path} {answer.status} {body[:300]!r} {text[:300]}")
                    engine.requests.clear()

            await asyncio.gather(*(send(bodies // 80) for _ in range(8)))
            gc.collect()
            before, begun = resident_mb(), time.perf_counter()
            for part in range(4):
                await asyncio.gather(*(send(bodies // 32) for _ in range(8)))
                gc.collect()
                print(f"{(part + 1) * (bodies // 4)} bodies: {resident_mb():.1f} MB resident")
            took = time.perf_counter() - begun
            print(
                f"after a warm-up of {bodies // 10}: {before:.1f} MB before, {resident_mb():.1f} MB after, {took:.0f} s"
            )
            for (path, status), count in sorted(statuses.items()):
                print(f"  {path:28} {status}: {count}")
            print("undocumented answers:", len(wrong))
            for line in wrong[:10]:
                print("  ", line)
            assert (await live.get("/live"))["status"] == "live"


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--bodies", type=int, default=20_000)
    flags.add_argument("--seed", type=int, default=1)
    options = flags.parse_args()
    uvloop.run(main(options.bodies, options.seed))
