"""The largest cached prefixes, for people: found by a scan in small steps, so that requests go on meanwhile."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeVar

from msgspec import Struct

from dynamo.kv.index.active_blocks import ActiveBlocks, Segment
from dynamo.kv.index.runs import Run, Runs
from dynamo.kv.index.slots import slots_in
from dynamo.kv.messages import Tier, WorkerRank

T = TypeVar("T")

MOST_ANCESTORS = 8
"""Prefixes before a large one that are returned with it."""
STEP = 256
"""Runs that are looked at between two yields: well below a millisecond."""


class CachedPrefix(Struct, frozen=True, kw_only=True):
    """Consecutive blocks of prompts, and which ranks hold some of them.

    Large are those of many blocks, and more so those that many ranks hold.
    """

    tier: Tier
    block: int
    """The sequence hash of its last block, which covers the whole prompt up to there."""
    parent: int | None
    """The hash of the nearest prefix before it that was found too; None: it is the first of its prompts."""
    begin: int
    """Blocks before it, as far as some rank holds them."""
    blocks: int
    held: int
    """Its blocks at all ranks together."""
    workers: list[WorkerRank]


PrefixScan = Generator[None, None, list[CachedPrefix]]
"""Yields every `STEP` runs and returns those found, the most held first. Changes in between may be missed.

A run goes on where others branch off; it is cut there, so that what is found is a tree.
"""


def scan_runs(runs: Runs, tier: Tier, workers: Sequence[WorkerRank | None], most: int) -> PrefixScan:
    heap: list[tuple[int, int, Run]] = []
    for number, run in enumerate(runs.all()):
        if number % STEP == 0:
            yield
        holders = run.full.bit_count()
        held = holders * len(run.blocks)
        if run.prefix:
            held += sum(run.prefix.values())
        if run.gaps:
            held += sum([positions.bit_count() for positions in run.gaps.values()])
        _keep(heap, most, (held * (holders + len(run.prefix) + len(run.gaps)), -number, run))
    chosen = dict.fromkeys([run for _, _, run in sorted(heap, reverse=True)])
    for run in list(chosen):
        yield
        for ancestor, _ in islice(_ancestors(runs, run), MOST_ANCESTORS):
            chosen[ancestor] = None
    places: dict[Run, tuple[int | None, int]] = {}
    cuts: dict[Run, set[int]] = {}
    for run in chosen:
        yield
        above, begin = None, 0
        for ancestor, end in _ancestors(runs, run):
            if above is None and ancestor in chosen:
                above = ancestor.blocks[end - 1]
                cuts.setdefault(ancestor, set()).add(end)
            begin += end
        places[run] = above, begin
    found = []
    for run, (above, begin) in places.items():
        yield
        bounds = sorted({0, len(run.blocks), *(cut for cut in cuts.get(run, ()) if cut < len(run.blocks))})
        for first, end in pairwise(bounds):
            by_slot = _held_counts(run, first, end)
            found.append(
                CachedPrefix(
                    tier=tier,
                    block=run.blocks[end - 1],
                    parent=run.blocks[first - 1] if first else above,
                    begin=begin + first,
                    blocks=end - first,
                    held=sum(by_slot.values()),
                    workers=_ranks_at(by_slot, workers),
                )
            )
    return sorted(found, key=lambda one: -one.held)


def scan_segments(blocks: ActiveBlocks, workers: Sequence[WorkerRank | None], most: int) -> PrefixScan:
    """Find the prefixes in an index of our own decisions."""
    heap: list[tuple[int, int, Segment]] = []
    for number, segment in enumerate(blocks.segments()):
        if number % STEP == 0:
            yield
        _keep(heap, most, ((segment.end - segment.begin) * segment.mask.bit_count() ** 2, -number, segment))
    chosen = dict.fromkeys([segment for _, _, segment in sorted(heap, reverse=True)])
    for segment in list(chosen):
        for ancestor in islice(_segments_above(segment), MOST_ANCESTORS):
            chosen[ancestor] = None
    found = []
    for segment in chosen:
        yield
        held = (segment.end - segment.begin) * segment.mask.bit_count()
        above = segment.parent
        while above is not None and above not in chosen:
            above = above.parent
        found.append(
            CachedPrefix(
                tier=Tier.Device,
                block=segment.hashes[segment.end - 1],
                parent=above.hashes[above.end - 1] if above else None,
                begin=segment.begin,
                blocks=segment.end - segment.begin,
                held=held,
                workers=_ranks_at(slots_in(segment.mask), workers),
            )
        )
    return sorted(found, key=lambda one: -one.held)


def _segments_above(segment: Segment) -> Iterator[Segment]:
    """The segments above one, without the root, which has no blocks."""
    while segment.parent is not None and segment.parent.end:
        segment = segment.parent
        yield segment


def _keep(heap: list[tuple[int, int, T]], most: int, one: tuple[int, int, T]) -> None:
    if len(heap) < most:
        heapq.heappush(heap, one)
    elif one[0] > heap[0][0]:
        heapq.heapreplace(heap, one)


def _ancestors(runs: Runs, run: Run) -> Iterator[tuple[Run, int]]:
    """The runs before it, the nearest first, and how many of their blocks are before it."""
    seen = {run}
    while run.parent is not None and (above := runs.of.get(run.parent)) is not None and above not in seen:
        seen.add(above)  # a worker may have reported blocks that are each other's parents
        yield above, above.blocks.index(run.parent) + 1
        run = above


def _held_counts(run: Run, first: int, end: int) -> dict[int, int]:
    """How many of these blocks of a run each slot holds; those that hold none are left out."""
    counts = dict.fromkeys(slots_in(run.full), end - first)
    counts |= {slot: min(length, end) - first for slot, length in run.prefix.items() if length > first}
    mask = (1 << end) - (1 << first)
    counts |= {slot: (positions & mask).bit_count() for slot, positions in run.gaps.items() if positions & mask}
    return counts


def _ranks_at(slots: Iterable[int], workers: Sequence[WorkerRank | None]) -> list[WorkerRank]:
    return [worker for slot in slots if slot < len(workers) and (worker := workers[slot]) is not None]
