"""CPU time of one routing decision, part by part. usage: PYTHONPATH=src python benchmarks/kv_decision.py"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from functools import partial

from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.index.index import Index
from dynamo.kv.messages import RouterEvent, Stored, WorkerRank
from dynamo.router.choice.choose import choose
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.load_book import LoadBook


def timed(work: Callable[[], object], number: int = 50, repeats: int = 7) -> float:
    """Best CPU microseconds per call."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time_ns()
        for _ in range(number):
            work()
        best = min(best, (time.process_time_ns() - start) / number / 1000)
    return best


def main() -> None:
    rng = random.Random(1)
    block, workers, tokens = 16, 256, 8192
    fleet = Fleet({WorkerRank(n): Capacity(total_blocks=16384, max_batched_tokens=8192) for n in range(workers)}, block)
    prompt = array("I", [rng.randrange(150_000) for _ in range(tokens)])
    chain = prompt_hashes(prompt, block)
    config = CostConfig()
    print(f"{workers} workers, {tokens}-token prompt, blocks of {block}; CPU us, best of 7")
    for name, depths in (
        ("unknown prompt", [0] * workers),
        ("4 workers hold half", [256] * 4 + [0] * (workers - 4)),
        ("all hold half", [256] * workers),
        ("all hold some, each another depth", [2 * n for n in range(workers)]),
    ):
        index, book = Index(), LoadBook()
        for n, depth in enumerate(depths):
            book.add_worker(WorkerRank(n))
            if depth:
                index.apply(RouterEvent(worker_id=n, event_id=0, data=Stored(chain[:depth])))
            for k in range(4):
                other = [*prompt[: 16 * rng.choice((0, 64, 64, 128))], *(rng.randrange(150_000) for _ in range(512))]
                hashes = prompt_hashes(other, block)
                book.reserve(f"{n}.{k}", WorkerRank(n), hashes, now=0.0, prompt_tokens=len(other), prefill_tokens=512)
        overlaps, loads = index.match(chain), book.loads(fleet.workers, chain, 1.0)
        parts: dict[str, Callable[[], object]] = {
            "hash": partial(prompt_hashes, prompt, block),
            "match": partial(index.match, chain),
            "loads": partial(book.loads, fleet.workers, chain, 1.0),
            "cost": partial(choose, tokens, len(chain), fleet, overlaps, loads, config, rng),
        }

        def book_and_free(book: LoadBook = book) -> None:
            book.reserve("x", WorkerRank(0), chain, now=1.0, prompt_tokens=tokens, prefill_tokens=tokens)
            book.free("x")

        took = {part: timed(work) for part, work in parts.items()}
        text = "  ".join(f"{part} {us:5.1f}" for part, us in took.items())
        print(f"  {name:34} {text}  = {sum(took.values()):5.1f}   (book + free {timed(book_and_free):5.1f})")


if __name__ == "__main__":
    main()
