"""The index at size, beside the least that could do: a dict from block to the bits of its holders.

usage: PYTHONPATH=src python benchmarks/kv_index.py [--blocks 1000000] [--workers 256] [--names common] [--memory]

Prompts of 100 blocks, each on 1 to 4 workers. The floor is given sequence hashes: it computes no chain, knows no other
names, no parents and no gaps, and refuses nothing. Both see the same events in the same order, in the same process.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from dynamo.kv.hashing import sequence_hashes
from dynamo.protocols.kv import Removed, RouterEvent, Stored
from dynamo.router.kv.index.index import Index, Rejected
from dynamo.router.kv.slots import WorkerRank

DEPTH = 100
ROUND = 100_000
"""Events between two looks at the clock."""

Change = tuple[int, list[int]]
"""A worker and sequence hashes: what the floor is told."""


class Floor:
    """Right as long as every worker drops its blocks last one first."""

    def __init__(self) -> None:
        self.holders: dict[int, int] = {}

    def store(self, worker: int, blocks: list[int]) -> None:
        holders, bit = self.holders, 1 << worker
        get = holders.get
        for block in blocks:
            holders[block] = get(block, 0) | bit

    def remove(self, worker: int, blocks: list[int]) -> None:
        holders, bit = self.holders, 1 << worker
        for block in blocks:
            if left := holders[block] & ~bit:
                holders[block] = left
            else:
                del holders[block]


class Prompt:
    """A chain of blocks and the workers that hold it, by the names they have for its blocks."""

    def __init__(self, rng: random.Random, workers: int, names: str) -> None:
        naming = random.Random(rng.getrandbits(64))
        self.local = [rng.getrandbits(64) for _ in range(DEPTH)]
        self.chain = sequence_hashes(self.local)
        self.holders = rng.sample(range(workers), rng.randint(1, min(4, workers)))
        common = [naming.getrandbits(64) for _ in range(DEPTH)]
        self._names = {
            worker: self.chain
            if names == "sequence"
            else common
            if names == "common"
            else [naming.getrandbits(64) for _ in range(DEPTH)]
            for worker in self.holders
        }

    def stored(self, per_event: int) -> Iterable[RouterEvent]:
        for worker in self.holders:
            yield from stored(worker, self._names[worker], self.local, per_event)

    def removed(self, per_event: int) -> Iterable[RouterEvent]:
        """From its end, as engines evict."""
        for worker in self.holders:
            for at in range(DEPTH - per_event, -1, -per_event):
                gone = self._names[worker][at : at + per_event][::-1]
                yield RouterEvent(worker_id=worker, event_id=0, data=Removed(gone))

    def changes(self, per_event: int) -> Iterable[Change]:
        for worker in self.holders:
            for at in range(0, DEPTH, per_event):
                yield worker, self.chain[at : at + per_event]


def stored(worker: int, names: list[int], local: list[int], per_event: int) -> Iterable[RouterEvent]:
    for at in range(0, len(names), per_event):
        data = Stored(names[at : at + per_event], local[at : at + per_event], names[at - 1] if at else None)
        yield RouterEvent(worker_id=worker, event_id=0, data=data)


def us(work: Callable[[], object], number: int, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time_ns()
        for _ in range(number):
            work()
        best = min(best, (time.process_time_ns() - start) / number / 1000)
    return best


def timed(apply: Callable[[Any], object], events: Sequence[Any]) -> list[float]:
    """CPU us per event, round by round."""
    took = []
    for at in range(0, len(events), ROUND):
        part = events[at : at + ROUND]
        start = time.process_time_ns()
        for event in part:
            apply(event)
        took.append((time.process_time_ns() - start) / len(part) / 1000)
    return took


def spread(times: list[float]) -> str:
    return f"{min(times):6.2f} .. {max(times):5.2f}, mean {sum(times) / len(times):5.2f}"


def times(o: argparse.Namespace, prompts: list[Prompt], rng: random.Random) -> None:
    index, floor = Index(), Floor()
    copies = sum(len(prompt.holders) for prompt in prompts) * DEPTH
    events = [event for prompt in prompts for event in prompt.stored(o.per_event)]
    changes = [change for prompt in prompts for change in prompt.changes(o.per_event)]
    plain = timed(lambda change: floor.store(*change), changes)
    ours = timed(index.apply, events)
    del events, changes
    print(f"{o.workers} workers, {len(index)} different blocks, {copies} copies, {o.names} names; CPU us")
    print(f"  stored event of {o.per_event} blocks       {spread(ours)}")
    print(f"    floor                       {spread(plain)}")
    local = [rng.getrandbits(64) for _ in range(o.per_event)]
    print(f"    chain hashes alone          {us(lambda: sequence_hashes(local, 1), 10000):6.2f}")
    queries(o, index, prompts, rng)
    # A quarter of all prompts, so that the index stays large.
    some = rng.sample(prompts, len(prompts) // 4)
    ours = timed(index.apply, [event for prompt in some for event in prompt.removed(o.per_event)])
    plain = timed(
        lambda change: floor.remove(*change),
        [(worker, part[::-1]) for prompt in some for worker, part in reversed([*prompt.changes(o.per_event)])],
    )
    print(f"  removed event of {o.per_event} blocks      {spread(ours)}")
    print(f"    floor                       {spread(plain)}")
    begin = time.process_time_ns()
    index.remove_worker(WorkerRank(1))
    print(f"  removal of a whole worker     {(time.process_time_ns() - begin) / 1e6:6.2f} ms")


def queries(o: argparse.Namespace, index: Index, prompts: list[Prompt], rng: random.Random) -> None:
    hot_local = [rng.getrandbits(64) for _ in range(DEPTH)]
    hot = sequence_hashes(hot_local)
    for worker in range(o.workers):
        for event in stored(worker, hot, hot_local, o.per_event):
            assert not isinstance(index.apply(event), Rejected)
    long_local = [rng.getrandbits(64) for _ in range(6000)]
    long = sequence_hashes(long_local)
    for event in stored(0, long, long_local, o.per_event):
        index.apply(event)
    miss = [rng.getrandbits(64) for _ in range(DEPTH)]
    print(f"  miss                          {us(lambda: index.match(miss), 10000):6.2f}")
    hit = us(lambda: index.match(prompts[rng.randrange(len(prompts))].chain), 10000)
    print(f"  hit, {DEPTH} blocks, 1-4 workers   {hit:6.2f}")
    print(f"  hot prefix on all workers     {us(lambda: index.match(hot), 2000):6.2f}")
    print(f"  hit, 6000 blocks              {us(lambda: index.match(long), 2000):6.2f}")
    for worker in range(0, o.workers, 16):
        index.apply(RouterEvent(worker_id=worker, event_id=0, data=Removed([hot[50]])))
    print(f"  hot prefix, 1 in 16 has a gap {us(lambda: index.match(hot), 2000):6.2f}")


def memory(o: argparse.Namespace, prompts: list[Prompt]) -> None:
    """Events come as bytes, so that every number an index keeps is one it had to keep."""
    decode = msgspec.msgpack.Decoder(RouterEvent).decode
    encode = msgspec.msgpack.Encoder().encode
    copies = sum(len(prompt.holders) for prompt in prompts) * DEPTH
    hashes = {block for prompt in prompts for block in prompt.chain}
    events = [encode(event) for prompt in prompts for event in prompt.stored(o.per_event)]
    for event in events:
        if isinstance(data := decode(event).data, Stored):
            hashes.update(data.block_hashes)
    changes = [encode(change) for prompt in prompts for change in prompt.changes(o.per_event)]
    take = msgspec.msgpack.Decoder(Change).decode
    index, floor = Index(), Floor()
    print(f"{o.workers} workers, {o.blocks} different blocks, {copies} copies, {o.names} names; bytes per block")
    for name, kept, apply, given in (
        ("floor", floor, lambda data: floor.store(*take(data)), changes),
        ("index", index, lambda data: index.apply(decode(data)), events),
    ):
        tracemalloc.start()
        for message in given:
            apply(message)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        ints = hash_objects(kept, hashes)
        rest = used - sum(ints)
        print(
            f"  {name}: {used / o.blocks:6.1f} in all, {rest / o.blocks:6.1f} without hashes ({rest / copies:5.1f} "
            f"per copy); {len(ints) / o.blocks:4.2f} hashes per block are kept"
        )


def hash_objects(kept: object, hashes: set[int]) -> list[int]:
    """The sizes of all int objects that something refers to and that are names or sequence hashes of blocks."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    look: list[Any] = [kept]
    while look:
        thing = look.pop()
        if isinstance(thing, int):
            if thing in hashes:
                found[id(thing)] = sys.getsizeof(thing)
        elif id(thing) not in seen and not isinstance(thing, type):
            seen.add(id(thing))
            look += gc.get_referents(thing)
    return list(found.values())


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--blocks", type=int, default=1_000_000)
    ap.add_argument("--workers", type=int, default=256)
    ap.add_argument("--per-event", type=int, default=4, help="blocks in one event; a divisor of 100")
    ap.add_argument(
        "--names",
        choices=("common", "sequence", "own"),
        default="common",
        help="what engines call a block: all the same, its sequence hash, or each something else",
    )
    ap.add_argument("--memory", action="store_true", help="trace memory instead of time (slow)")
    o = ap.parse_args()
    rng = random.Random(3)
    gc.disable()
    prompts = [Prompt(rng, o.workers, o.names) for _ in range(o.blocks // DEPTH)]
    if o.memory:
        memory(o, prompts)
    else:
        times(o, prompts, rng)


if __name__ == "__main__":
    main()
