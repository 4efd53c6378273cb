"""Which ranks hold which blocks of one tier, kept as runs of consecutive blocks.

A block is identified by its sequence hash, which covers the whole prefix up to it. Ranks are identified by their
slots. A rank that holds a whole run is one bit, so an event costs more the more prompts diverge, not the longer they
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamo.kv.hashing import common_blocks
from dynamo.kv.index.slots import fill, slots_in

_MAX_FULL_TO_GROW = 2
"""A run that more ranks hold in full is not extended: each other rank would need an entry in `prefix`."""


class Run:
    """Consecutive blocks of a prompt, each held by at least one rank."""

    __slots__ = ("blocks", "full", "gaps", "parent", "prefix")

    def __init__(self, blocks: list[int], parent: int | None, full: int) -> None:
        self.blocks = blocks
        self.parent = parent
        """The block before the first one."""
        self.full = full
        """Ranks that hold all of it, as a bitmask of slots."""
        self.prefix: dict[int, int] = {}
        """Ranks that hold only its first blocks, and how many."""
        self.gaps: dict[int, int] = {}
        """Ranks that hold any other subset, as a bitmask of positions."""

    def held(self, slot: int) -> int:
        """The positions a rank holds, as a bitmask."""
        end = len(self.blocks) if self.full >> slot & 1 else self.prefix.get(slot, 0)
        return (1 << end) - 1 if end else self.gaps.get(slot, 0)

    def hold(self, slot: int, positions: int) -> None:
        """Make a rank hold exactly these positions."""
        self.full &= ~(1 << slot)
        self.prefix.pop(slot, None)
        self.gaps.pop(slot, None)
        end = positions.bit_length()
        if positions.bit_count() < end:
            self.gaps[slot] = positions
        elif end == len(self.blocks):
            self.full |= 1 << slot
        elif end:
            self.prefix[slot] = end

    def common(self, position: int, hashes: Sequence[int], at: int) -> int:
        """How many blocks from `position` on equal `hashes` from `at` on, given that the first one does."""
        return common_blocks(self.blocks, position, hashes, at, min(len(self.blocks) - position, len(hashes) - at))


class Runs:
    """One tier. `store`, `remove` and `clear` return how many blocks the rank gained or lost."""

    def __init__(self) -> None:
        self.of: dict[int, Run] = {}
        """The run of each block that any rank holds."""
        self.counts: dict[int, int] = {}
        """Blocks held by each slot."""
        self._all: dict[Run, None] = {}
        """In order of creation, so that equal histories give equal snapshots."""

    def all(self) -> list[Run]:
        """All runs, the oldest first, as they are now."""
        return list(self._all)

    def holds(self, slot: int, block: int) -> bool:
        run = self.of.get(block)
        if run is None:
            return False
        if run.full >> slot & 1:
            return True
        if end := run.prefix.get(slot, 0):
            return block == run.blocks[end - 1] or block in run.blocks[: end - 1]
        return slot in run.gaps and bool(run.gaps[slot] >> run.blocks.index(block) & 1)

    def held(self, slot: int) -> Iterator[tuple[int, int | None]]:
        """All blocks of a rank, each with its parent; a parent that the rank holds comes before its children."""
        seen: set[Run] = set()
        for run in self._with(slot):
            path: list[Run] = []
            while run not in seen and run.held(slot):
                seen.add(run)
                path.append(run)
                above = None if run.parent is None else self.of.get(run.parent)
                if above is None:
                    break
                run = above
            for one in reversed(path):
                positions, parent = one.held(slot), one.parent
                for at, block in enumerate(one.blocks):
                    if positions >> at & 1:
                        yield block, parent
                    parent = block

    def store(self, slot: int, hashes: list[int], parent: int | None) -> int:
        """Add consecutive blocks, which all differ; `parent` is the block before the first."""
        of, bit, at, new, total = self.of, 1 << slot, 0, 0, len(hashes)
        while at < total:
            run = of.get(hashes[at])
            if run is None:
                end = at + 1
                while end < total and hashes[end] not in of:
                    end += 1
                self._add(bit, hashes[at:end], hashes[at - 1] if at else parent)
                new += end - at
                at = end
                continue
            position, blocks = run.prefix.get(slot, 0), run.blocks
            if run.full & bit or blocks[position] != hashes[at] or slot in run.gaps:
                position = blocks.index(hashes[at])
                count = run.common(position, hashes, at)
                held = run.held(slot)
                more = held | ((1 << count) - 1) << position
                new += (more ^ held).bit_count()
                run.hold(slot, more)
            else:
                count = run.common(position, hashes, at)
                new += count
                if position + count < len(blocks):
                    run.prefix[slot] = position + count
                else:
                    run.full |= bit
                    if position:
                        del run.prefix[slot]
            at += count
        self.counts[slot] = self.counts.get(slot, 0) + new
        return new

    def remove(self, slot: int, blocks: list[int]) -> int:
        if blocks and self._remove_tail(slot, blocks):
            removed = len(blocks)
        else:
            removed = sum([self._remove_one(slot, block) for block in blocks])
        if removed:
            self.counts[slot] -= removed
        return removed

    def clear(self, slot: int) -> int:
        for run in self._with(slot):
            held = run.held(slot)
            run.hold(slot, 0)
            self._discard_unheld(run, held)
        return self.counts.pop(slot, 0)

    def match(self, hashes: Sequence[int], depths: list[int], ranks: int = -1, at: int = 0) -> None:
        """Write to `depths`, by slot, up to which block each of these ranks holds a prompt from block `at` on.

        The depths of ranks that do not hold block `at` are left as they are.
        """
        of, begin, total = self.of, at, len(hashes)
        while at < total and ranks and (run := of.get(hashes[at])):
            position = 0 if run.blocks[0] == hashes[at] else run.blocks.index(hashes[at])
            count = run.common(position, hashes, at)
            on, ended = ranks & run.full, 0
            if run.prefix:
                here, enough = at - position, position + count
                for slot, end in run.prefix.items():
                    if end >= enough:
                        on |= ranks & 1 << slot
                    elif end > position and ranks >> slot & 1:
                        depths[slot] = here + end
                        ended |= 1 << slot
            for slot, positions in run.gaps.items():
                if ranks >> slot & 1:
                    positions >>= position
                    # Adding one flips all bits up to the lowest that is not set.
                    some = (positions ^ (positions + 1)).bit_length() - 1
                    if some >= count:
                        on |= 1 << slot
                    elif some:
                        depths[slot] = at + some
                        ended |= 1 << slot
            if at > begin and (ended := ranks & ~(on | ended)):
                fill(depths, ended, at)
            ranks = on
            at += count
        if at > begin and ranks:
            fill(depths, ranks, at)

    def _with(self, slot: int) -> list[Run]:
        return [run for run in self._all if run.full >> slot & 1 or slot in run.prefix or slot in run.gaps]

    def _add(self, bit: int, blocks: list[int], parent: int | None) -> None:
        """Add blocks that no rank held before: they extend the run of their parent or form a new one."""
        of = self.of
        run = None if parent is None else of.get(parent)
        if run is not None and run.blocks[-1] != parent:
            # A run ends where prompts diverge: ranks that hold the common part hold a whole run.
            run = self._split(run, run.blocks.index(parent) + 1)  # type: ignore[arg-type]
        if run is not None and run.full & bit and run.full.bit_count() <= _MAX_FULL_TO_GROW:
            if others := run.full ^ bit:
                run.prefix.update(dict.fromkeys(slots_in(others), len(run.blocks)))
                run.full = bit
            run.blocks += blocks
        else:
            run = Run(blocks, parent, bit)
            self._all[run] = None
        for block in blocks:
            of[block] = run

    def _remove_tail(self, slot: int, blocks: list[int]) -> bool:
        """Remove the last blocks that a rank holds of a run, given last one first, as engines evict them.

        Returns False and changes nothing if these are other blocks.
        """
        run = self.of.get(blocks[0])
        if run is None:
            return False
        held, full, bit, prefix = run.blocks, run.full, 1 << slot, run.prefix
        end = len(held) if full & bit else prefix.get(slot, 0)
        begin = end - len(blocks)
        if begin < 0 or held[begin:end] != blocks[::-1]:
            return False
        if full == bit and not prefix and not run.gaps:
            self._truncate(run, begin)
            return True
        if full & bit:
            run.full = full = full ^ bit
        if begin:
            prefix[slot] = begin
        else:
            prefix.pop(slot, None)
        if full:
            return True
        if run.gaps:
            self._discard_unheld(run, (1 << end) - (1 << begin))
        elif (longest := max(prefix.values(), default=0)) < len(held):
            self._truncate(run, longest)
        return True

    def _remove_one(self, slot: int, block: int) -> bool:
        if not self.holds(slot, block):
            return False
        run = self.of[block]
        position = 1 << run.blocks.index(block)
        run.hold(slot, run.held(slot) & ~position)
        self._discard_unheld(run, position)
        return True

    def _discard_unheld(self, run: Run, positions: int) -> None:
        """Delete from a run those of these positions that no rank holds any more."""
        if run.full:
            return
        for end in run.prefix.values():
            positions = positions >> end << end
        for held in run.gaps.values():
            positions &= ~held
        while positions:
            end = positions.bit_length()
            begin = (positions ^ ((1 << end) - 1)).bit_length()
            if end < len(run.blocks):
                run = self._split(run, end)
            self._truncate(run, begin)
            positions &= (1 << begin) - 1

    def _truncate(self, run: Run, end: int) -> None:
        """Delete all positions from `end` on, which no rank holds."""
        for block in run.blocks[end:]:
            del self.of[block]
        del run.blocks[end:]
        if not end:
            del self._all[run]
        elif run.prefix:
            for slot in [slot for slot, length in run.prefix.items() if length == end]:
                del run.prefix[slot]
                run.full |= 1 << slot

    def _split(self, run: Run, at: int) -> Run:
        """Cut a run in two and return the first. The longer part stays the same object: fewer blocks to reassign."""
        first, second = Run(run.blocks[:at], run.parent, run.full), Run(run.blocks[at:], run.blocks[at - 1], run.full)
        for slot in (*run.prefix, *run.gaps):
            positions = run.held(slot)
            first.hold(slot, positions & ((1 << at) - 1))
            second.hold(slot, positions >> at)
        stays, leaves = (first, second) if len(first.blocks) > len(second.blocks) else (second, first)
        run.blocks, run.parent, run.full = stays.blocks, stays.parent, stays.full
        run.prefix, run.gaps = stays.prefix, stays.gaps
        self._all[leaves] = None
        for block in leaves.blocks:
            self.of[block] = leaves
        return run if stays is first else leaves
