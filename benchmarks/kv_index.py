"""The index at size: query time, events per second, bytes per block.

usage: PYTHONPATH=src python benchmarks/kv_index.py [--blocks 1000000] [--workers 256]
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections.abc import Callable

from dynamo.protocols.kv import Removed, RouterEvent, Stored, StoredBlock
from dynamo.router.kv.hashing import sequence_hashes
from dynamo.router.kv.index import Index, Rejected
from dynamo.router.kv.slots import Worker

DEPTH = 100


def us(work: Callable[[], object], number: int, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time_ns()
        for _ in range(number):
            work()
        best = min(best, (time.process_time_ns() - start) / number / 1000)
    return best


def events_of(worker: int, names: list[int], local: list[int], per_event: int) -> list[RouterEvent]:
    made = []
    for at in range(0, len(names), per_event):
        blocks = [
            StoredBlock(*pair) for pair in zip(names[at : at + per_event], local[at : at + per_event], strict=True)
        ]
        made.append(RouterEvent(worker_id=worker, event_id=0, data=Stored(blocks, names[at - 1] if at else None)))
    return made


def applied(index: Index, events: list[RouterEvent]) -> float:
    """CPU us per event."""
    start = time.process_time_ns()
    apply = index.apply
    for event in events:
        apply(event)
    return (time.process_time_ns() - start) / len(events) / 1000


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--blocks", type=int, default=1_000_000)
    ap.add_argument("--workers", type=int, default=256)
    ap.add_argument("--per-event", type=int, default=4, help="blocks in one event; a divisor of 100")
    ap.add_argument("--memory", action="store_true", help="trace memory instead of time (slow)")
    o = ap.parse_args()
    rng = random.Random(3)
    gc.disable()
    index = Index()
    prompts: list[tuple[list[int], list[int], list[int]]] = []
    events: list[RouterEvent] = []
    copies = 0
    for _ in range(o.blocks // DEPTH):
        local = [rng.getrandbits(64) for _ in range(DEPTH)]
        names = [rng.getrandbits(64) for _ in range(DEPTH)]
        holders = rng.sample(range(o.workers), rng.randint(1, min(4, o.workers)))
        prompts.append((sequence_hashes(local), names, holders))
        copies += len(holders) * DEPTH
        for worker in holders:
            events += events_of(worker, names, local, o.per_event)
    # A router learns of chains side by side, but of each chain in order.
    if o.memory:
        tracemalloc.start()
    store = [applied(index, events[at : at + 100_000]) for at in range(0, len(events), 100_000)]
    if o.memory:
        used = tracemalloc.get_traced_memory()[0]
        ints = 32 * len(index)
        print(f"{o.workers} workers, {len(index)} different blocks, {copies} copies")
        print(f"  all: {used / len(index):.0f} B per different block, {used / copies:.0f} B per copy")
        print(f"  without the sequence hash objects themselves: {(used - ints) / len(index):.0f} B per different block")
        return
    hot_local = [rng.getrandbits(64) for _ in range(DEPTH)]
    hot = sequence_hashes(hot_local)
    for worker in range(o.workers):
        for event in events_of(worker, hot, hot_local, o.per_event):
            assert not isinstance(index.apply(event), Rejected)
    long_local = [rng.getrandbits(64) for _ in range(6000)]
    long = sequence_hashes(long_local)
    for event in events_of(0, long, long_local, o.per_event):
        index.apply(event)

    def hit() -> None:
        index.match(prompts[rng.randrange(len(prompts))][0])

    print(f"{o.workers} workers, {len(index)} different blocks, {copies} copies; CPU us")
    print(f"  stored event of {o.per_event} blocks       {min(store):6.2f} .. {max(store):.2f}")
    miss = [rng.getrandbits(64) for _ in range(DEPTH)]
    print(f"  miss                          {us(lambda: index.match(miss), 10000):6.2f}")
    print(f"  hit, {DEPTH} blocks, 1-4 workers   {us(hit, 10000):6.2f}")
    print(f"  hot prefix on all workers     {us(lambda: index.match(hot), 2000):6.2f}")
    print(f"  hit, 6000 blocks              {us(lambda: index.match(long), 2000):6.2f}")
    for worker in range(0, o.workers, 16):
        index.apply(RouterEvent(worker_id=worker, event_id=0, data=Removed([hot[50]])))
    print(f"  hot prefix, 1 in 16 has a gap {us(lambda: index.match(hot), 2000):6.2f}")
    removals = [
        RouterEvent(worker_id=worker, event_id=0, data=Removed(names[at : at + o.per_event][::-1]))
        for _, names, holders in prompts[: len(prompts) // 4]
        for worker in holders
        for at in range(DEPTH - o.per_event, -1, -o.per_event)
    ]
    print(f"  removed event of {o.per_event} blocks      {applied(index, removals):6.2f}")
    print(f"  events/s                      {1e6 * len(store) / sum(store):,.0f} stored")
    begin = time.process_time_ns()
    index.remove_worker(Worker(1))
    print(f"  removal of a whole worker     {(time.process_time_ns() - begin) / 1e6:6.2f} ms")


if __name__ == "__main__":
    main()
