"""The index at size, and beside it the plainest alternative: a dict from block to the bitmask of its holders.

usage: PYTHONPATH=src python benchmarks/kv_index.py [--blocks 1000000] [--workers 256] [--memory]

Prompts of 100 blocks, each on 1 to 4 workers. Both kinds see the same events, in turn, in the same process.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence

import msgspec

from dynamo.kv.index.index import Index
from dynamo.kv.index.slots import fill
from dynamo.kv.messages import Removed, RouterEvent, Stored, Tier, WorkerRank

DEPTH = 100
ROUND = 50_000
"""Events between two readings of the clock; the kinds take turns at each round."""
KINDS = ("runs", "masks")


class Masks:
    """The alternative to `Runs`, with the same interface: each block has one bitmask of the ranks that hold it.

    What one rank holds is found by looking through all blocks.
    """

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.counts: dict[int, int] = {}

    def store(self, slot: int, chain: list[int], parent: int | None) -> int:
        holders, bit, new = self.of, 1 << slot, 0
        get = holders.get
        for block in chain:
            held = get(block, 0)
            if not held & bit:
                new += 1
                holders[block] = held | bit
        self.counts[slot] = self.counts.get(slot, 0) + new
        return new

    def remove(self, slot: int, blocks: list[int]) -> int:
        holders, bit, gone = self.of, 1 << slot, 0
        get = holders.get
        for block in blocks:
            held = get(block, 0)
            if held & bit:
                gone += 1
                if held == bit:
                    del holders[block]
                else:
                    holders[block] = held ^ bit
        if gone:
            self.counts[slot] -= gone
        return gone

    def clear(self, slot: int) -> int:
        self.remove(slot, [block for block, held in self.of.items() if held >> slot & 1])
        return self.counts.pop(slot, 0)

    def reach(self, chain: Sequence[int], depths: list[int], ranks: int = -1, at: int = 0) -> None:
        masks = list(map(self.of.get, chain[at:] if at else chain))
        first = masks[0]
        if first is None or not (ranks := first & ranks):
            return
        if masks.count(first) == len(masks):
            fill(depths, ranks, len(chain))
            return
        for depth, mask in enumerate(masks, at):
            on = ranks & mask if mask else 0
            if on != ranks:
                fill(depths, ranks ^ on, depth)
                if not on:
                    return
                ranks = on
        fill(depths, ranks, len(chain))


def index_of(kind: str) -> Index:
    index = Index()
    if kind == "masks":
        index._tiers = {tier: Masks() for tier in Tier}  # type: ignore[misc]
        index._device, *index._lower = index._tiers.values()
        index._on_device = index._device.of
        index._below = [masks.of for masks in index._lower]
    return index


class Prompt:
    """A chain of blocks and the workers that hold it."""

    def __init__(self, rng: random.Random, workers: int) -> None:
        self.chain = [rng.getrandbits(64) for _ in range(DEPTH)]
        self.holders = rng.sample(range(workers), rng.randint(1, min(4, workers)))

    def stored(self, per_event: int) -> Iterable[RouterEvent]:
        for worker in self.holders:
            yield from stored(worker, self.chain, per_event)

    def removed(self, per_event: int) -> Iterable[RouterEvent]:
        """From its end, as engines evict."""
        for worker in self.holders:
            for at in range(DEPTH - per_event, -1, -per_event):
                yield RouterEvent(worker_id=worker, event_id=0, data=Removed(self.chain[at : at + per_event][::-1]))


def stored(worker: int, chain: list[int], per_event: int) -> Iterable[RouterEvent]:
    for at in range(0, len(chain), per_event):
        data = Stored(chain[at : at + per_event], chain[at - 1] if at else None)
        yield RouterEvent(worker_id=worker, event_id=0, data=data)


class Figures:
    """CPU microseconds by what was measured and by kind, printed side by side."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, list[float]]] = {}

    def add(self, what: str, kind: str, value: float) -> None:
        self._rows.setdefault(what, {}).setdefault(kind, []).append(value)

    def per_event(self, what: str, indexes: dict[str, Index], events: Sequence[RouterEvent]) -> None:
        for at in range(0, len(events), ROUND):
            part = events[at : at + ROUND]
            for kind, index in indexes.items():
                apply = index.apply
                start = time.process_time_ns()
                for event in part:
                    apply(event)
                self.add(what, kind, (time.process_time_ns() - start) / len(part) / 1000)

    def per_query(self, what: str, indexes: dict[str, Index], number: int, chain: Callable[[], list[int]]) -> None:
        for _ in range(3):
            for kind, index in indexes.items():
                chains = [chain() for _ in range(number)]
                match = index.match
                start = time.process_time_ns()
                for one in chains:
                    match(one)
                self.add(what, kind, (time.process_time_ns() - start) / number / 1000)

    def show(self) -> None:
        print(f"  {'':32}" + "".join(f"{kind:>22}" for kind in KINDS))
        for what, kinds in self._rows.items():
            cells = (f"{min(kinds[kind]):8.2f} .. {max(kinds[kind]):8.2f}" for kind in KINDS)
            print(f"  {what:32}" + "".join(f"{cell:>22}" for cell in cells))


def times(o: argparse.Namespace, prompts: list[Prompt], rng: random.Random) -> None:
    indexes = {kind: index_of(kind) for kind in KINDS}
    figures = Figures()
    copies = sum(len(prompt.holders) for prompt in prompts) * DEPTH
    events = [event for prompt in prompts for event in prompt.stored(o.per_event)]
    figures.per_event(f"stored event of {o.per_event} blocks", indexes, events)
    del events
    queries(o, figures, indexes, prompts, rng)
    # A quarter of all prompts, so that the index stays large.
    some = rng.sample(prompts, len(prompts) // 4)
    events = [event for prompt in some for event in prompt.removed(o.per_event)]
    figures.per_event(f"removed event of {o.per_event} blocks", indexes, events)
    for kind, index in indexes.items():
        begin = time.process_time_ns()
        index.remove_worker(WorkerRank(1))
        figures.add("removal of a whole worker", kind, (time.process_time_ns() - begin) / 1000)
    print(f"{o.workers} workers, {len(indexes['runs'])} different blocks, {copies} copies; CPU us")
    figures.show()


def queries(
    o: argparse.Namespace, figures: Figures, indexes: dict[str, Index], prompts: list[Prompt], rng: random.Random
) -> None:
    hot, long, missed = ([rng.getrandbits(64) for _ in range(size)] for size in (DEPTH, 6000, DEPTH))
    for index in indexes.values():
        for worker in range(o.workers):
            for event in stored(worker, hot, o.per_event):
                index.apply(event)
        for event in stored(0, long, o.per_event):
            index.apply(event)
    figures.per_query("miss", indexes, 10000, lambda: missed)
    figures.per_query(f"hit, {DEPTH} blocks, 1-4 workers", indexes, 10000, lambda: rng.choice(prompts).chain)
    figures.per_query("hot prefix on all workers", indexes, 2000, lambda: hot)
    figures.per_query("hit, 6000 blocks", indexes, 500, lambda: long)
    for index in indexes.values():
        for worker in range(0, o.workers, 16):
            index.apply(RouterEvent(worker_id=worker, event_id=0, data=Removed([hot[50]])))
    figures.per_query("hot prefix, 1 in 16 has a gap", indexes, 2000, lambda: hot)


def memory(o: argparse.Namespace, prompts: list[Prompt]) -> None:
    """Events come as bytes, so that every number an index keeps is its own."""
    decode = msgspec.msgpack.Decoder(RouterEvent).decode
    encode = msgspec.msgpack.Encoder().encode
    copies = sum(len(prompt.holders) for prompt in prompts) * DEPTH
    events = [encode(event) for prompt in prompts for event in prompt.stored(o.per_event)]
    print(f"{o.workers} workers, {o.blocks} different blocks, {copies} copies; bytes per block")
    for kind in KINDS:
        index = index_of(kind)
        tracemalloc.start()
        for data in events:
            index.apply(decode(data))
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        print(f"  {kind}: {used / o.blocks:6.1f}")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--blocks", type=int, default=1_000_000)
    ap.add_argument("--workers", type=int, default=256)
    ap.add_argument("--per-event", type=int, default=4, help="blocks in one event; a divisor of 100")
    ap.add_argument("--memory", action="store_true", help="trace memory instead of time (slow)")
    o = ap.parse_args()
    rng = random.Random(3)
    gc.disable()
    prompts = [Prompt(rng, o.workers) for _ in range(o.blocks // DEPTH)]
    if o.memory:
        memory(o, prompts)
    else:
        times(o, prompts, rng)


if __name__ == "__main__":
    main()
