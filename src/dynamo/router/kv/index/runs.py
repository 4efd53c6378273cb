"""Which workers hold which blocks, as runs of consecutive ones: what an event costs depends on where chains part.

A block is known by its sequence hash, which names the whole prefix up to it. Who holds a whole run is one bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamo.kv.hashing import agreement
from dynamo.router.kv.slots import put, slots_in

_FEW = 2
"""A run that more workers hold as a whole does not grow: all others would have to be written down one by one."""


class Run:
    """Consecutive blocks of a chain, each held by somebody. Workers are known by their slots."""

    __slots__ = ("above", "blocks", "full", "gaps", "upto")

    def __init__(self, blocks: list[int], above: int | None, full: int) -> None:
        self.blocks = blocks
        self.above = above
        """The block before the first one."""
        self.full = full
        """Who holds all of it, as bits."""
        self.upto: dict[int, int] = {}
        """Who holds its beginning, and how many blocks of it."""
        self.gaps: dict[int, int] = {}
        """Who holds anything else of it: the places as bits."""

    def held(self, slot: int) -> int:
        """The places a worker holds, as bits."""
        end = len(self.blocks) if self.full >> slot & 1 else self.upto.get(slot, 0)
        return (1 << end) - 1 if end else self.gaps.get(slot, 0)

    def hold(self, slot: int, places: int) -> None:
        """A worker holds exactly these places from now on."""
        self.full &= ~(1 << slot)
        self.upto.pop(slot, None)
        self.gaps.pop(slot, None)
        end = places.bit_length()
        if places.bit_count() < end:
            self.gaps[slot] = places
        elif end == len(self.blocks):
            self.full |= 1 << slot
        elif end:
            self.upto[slot] = end

    def agrees(self, place: int, chain: Sequence[int], at: int) -> int:
        """How many blocks from `place` on are those of a chain from `at` on, where the first one is."""
        return agreement(self.blocks, place, chain, at, min(len(self.blocks) - place, len(chain) - at))


class Runs:
    def __init__(self) -> None:
        self.of: dict[int, Run] = {}
        """The run of each block that anybody holds."""
        self._all: dict[Run, None] = {}
        """In the order they came, so that snapshots tell the same in the same order."""

    def holds(self, slot: int, block: int) -> bool:
        run = self.of.get(block)
        if run is None:
            return False
        if run.full >> slot & 1:
            return True
        if end := run.upto.get(slot, 0):
            return block == run.blocks[end - 1] or block in run.blocks[: end - 1]
        return slot in run.gaps and bool(run.gaps[slot] >> run.blocks.index(block) & 1)

    def lacks(self, slot: int, chain: list[int]) -> bool:
        """Whether a worker holds no block of a chain."""
        at, total = 0, len(chain)
        while at < total:
            run = self.of.get(chain[at])
            if run is None:
                at += 1
                continue
            end = run.upto.get(slot, 0)
            place = end if run.blocks[end] == chain[at] else run.blocks.index(chain[at])
            count = run.agrees(place, chain, at)
            if run.held(slot) >> place & ((1 << count) - 1):
                return False
            at += count
        return True

    def held(self, slot: int) -> Iterator[tuple[int, int | None]]:
        """All blocks of a worker with their parents, which come first if they are its blocks too."""
        told: set[Run] = set()
        for run in self._with(slot):
            path: list[Run] = []
            while run not in told and run.held(slot):
                told.add(run)
                path.append(run)
                above = None if run.above is None else self.of.get(run.above)
                if above is None:
                    break
                run = above
            for one in reversed(path):
                places, parent = one.held(slot), one.above
                for at, block in enumerate(one.blocks):
                    if places >> at & 1:
                        yield block, parent
                    parent = block

    def store(self, slot: int, chain: list[int], parent: int | None) -> int:
        """A worker holds a chain under another block, or under none; returns how many of its blocks are new to it."""
        of, bit, at, new, total = self.of, 1 << slot, 0, 0, len(chain)
        while at < total:
            run = of.get(chain[at])
            if run is None:
                end = at + 1
                while end < total and chain[end] not in of:
                    end += 1
                self._begin(bit, chain if end - at == total else chain[at:end], chain[at - 1] if at else parent)
                new += end - at
                at = end
                continue
            place, blocks = run.upto.get(slot, 0), run.blocks
            if run.full & bit or blocks[place] != chain[at] or slot in run.gaps:
                place = blocks.index(chain[at])
                count = run.agrees(place, chain, at)
                held = run.held(slot)
                more = held | ((1 << count) - 1) << place
                new += (more ^ held).bit_count()
                run.hold(slot, more)
            else:
                count = run.agrees(place, chain, at)
                new += count
                if place + count < len(blocks):
                    run.upto[slot] = place + count
                else:
                    run.full |= bit
                    if place:
                        del run.upto[slot]
            at += count
        return new

    def append(self, slot: int, chain: list[int], parent: int) -> bool:
        """The same for blocks that nobody holds, at the end of a run that only this worker holds as a whole.

        False, and nothing happens, if this is not so.
        """
        of = self.of
        run = of.get(parent)
        if run is None or run.full != 1 << slot or run.blocks[-1] != parent or not of.keys().isdisjoint(chain):
            return False
        run.blocks += chain
        for block in chain:
            of[block] = run
        return True

    def advance(self, slot: int, chain: list[int]) -> bool:
        """The same for blocks of a run whose beginning this worker holds, just up to there; False as above."""
        run = self.of.get(chain[0])
        if run is None or not (place := run.upto.get(slot, 0)):
            return False
        blocks, end = run.blocks, place + len(chain)
        if blocks[place] != chain[0] or end > len(blocks) or blocks[end - 1] != chain[-1]:
            return False
        if end < len(blocks):
            run.upto[slot] = end
        else:
            del run.upto[slot]
            run.full |= 1 << slot
        return True

    def cut(self, slot: int, blocks: Sequence[int | None]) -> list[int] | None:
        """A worker loses the end of what it holds of a run, last block first.

        Returns the blocks that nobody holds any more; None, and nothing happens, if this is not what it loses.
        """
        run = self.of.get(blocks[0])  # type: ignore[arg-type]
        if run is None:
            return None
        held, full, bit, upto = run.blocks, run.full, 1 << slot, run.upto
        end = len(held) if full & bit else upto.get(slot, 0)
        begin = end - len(blocks)
        if begin < 0 or held[begin:end] != blocks[::-1]:
            return None
        if full == bit and not upto and not run.gaps:
            return self._shorten(run, begin)
        if full & bit:
            run.full = full = full ^ bit
        if begin:
            upto[slot] = begin
        else:
            upto.pop(slot, None)
        if full:
            return []
        if run.gaps:
            return self._tidy(run, (1 << end) - (1 << begin))
        left = max(upto.values(), default=0)
        return self._shorten(run, left) if left < len(held) else []

    def drop(self, slot: int, block: int) -> list[int]:
        """A worker loses a block it holds; the same."""
        run = self.of[block]
        place = 1 << run.blocks.index(block)
        run.hold(slot, run.held(slot) & ~place)
        return self._tidy(run, place)

    def clear(self, slot: int) -> list[int]:
        """A worker loses all it holds; the same."""
        gone = []
        for run in self._with(slot):
            held = run.held(slot)
            run.hold(slot, 0)
            gone += self._tidy(run, held)
        return gone

    def reach(self, chain: Sequence[int], depths: list[int], workers: int = -1, at: int = 0) -> None:
        """Write by slot up to where these workers hold a chain, from `at` on; nothing for those who lack that block."""
        of, begin, total = self.of, at, len(chain)
        while at < total and workers and (run := of.get(chain[at])):
            place = 0 if run.blocks[0] == chain[at] else run.blocks.index(chain[at])
            count = run.agrees(place, chain, at)
            on, ended = workers & run.full, 0
            if run.upto:
                here, enough = at - place, place + count
                for slot, end in run.upto.items():
                    if end >= enough:
                        on |= workers & 1 << slot
                    elif end > place and workers >> slot & 1:
                        depths[slot] = here + end
                        ended |= 1 << slot
            for slot, places in run.gaps.items():
                if workers >> slot & 1:
                    places >>= place
                    # Adding one turns all bits up to the first that is not set.
                    some = (places ^ (places + 1)).bit_length() - 1
                    if some >= count:
                        on |= 1 << slot
                    elif some:
                        depths[slot] = at + some
                        ended |= 1 << slot
            if at > begin and (ended := workers & ~(on | ended)):
                put(depths, ended, at)
            workers = on
            at += count
        if at > begin and workers:
            put(depths, workers, at)

    def _with(self, slot: int) -> list[Run]:
        return [run for run in self._all if run.full >> slot & 1 or slot in run.upto or slot in run.gaps]

    def _begin(self, worker: int, blocks: list[int], above: int | None) -> None:
        """Blocks nobody held before go to the end of the run of the one before them, or are a new run."""
        of = self.of
        run = None if above is None else of.get(above)
        if run is not None and run.blocks[-1] != above:
            # Where chains part, runs end: who holds the common part holds a whole run.
            run = self._split(run, run.blocks.index(above) + 1)  # type: ignore[arg-type]
        if run is not None and run.full & worker and run.full.bit_count() <= _FEW:
            if others := run.full ^ worker:
                run.upto.update(dict.fromkeys(slots_in(others), len(run.blocks)))
                run.full = worker
            run.blocks += blocks
        else:
            run = Run(blocks, above, worker)
            self._all[run] = None
        for block in blocks:
            of[block] = run

    def _tidy(self, run: Run, places: int) -> list[int]:
        """Take out those of some places of a run that nobody holds any more; returns their blocks."""
        if run.full:
            return []
        for end in run.upto.values():
            places = places >> end << end
        for held in run.gaps.values():
            places &= ~held
        gone: list[int] = []
        while places:
            end = places.bit_length()
            begin = (places ^ ((1 << end) - 1)).bit_length()
            if end < len(run.blocks):
                run = self._split(run, end)
            gone += self._shorten(run, begin)
            places &= (1 << begin) - 1
        return gone

    def _shorten(self, run: Run, end: int) -> list[int]:
        """Take out all places from `end` on, which nobody holds."""
        gone = run.blocks[end:]
        for block in gone:
            del self.of[block]
        del run.blocks[end:]
        if not end:
            del self._all[run]
        elif run.upto:
            for slot in [slot for slot, upto in run.upto.items() if upto == end]:
                del run.upto[slot]
                run.full |= 1 << slot
        return gone

    def _split(self, run: Run, at: int) -> Run:
        """Cut a run in two and return the first. The longer part stays the same object: fewer blocks to tell."""
        first, second = Run(run.blocks[:at], run.above, run.full), Run(run.blocks[at:], run.blocks[at - 1], run.full)
        for slot in (*run.upto, *run.gaps):
            places = run.held(slot)
            first.hold(slot, places & ((1 << at) - 1))
            second.hold(slot, places >> at)
        stays, leaves = (first, second) if len(first.blocks) > len(second.blocks) else (second, first)
        run.blocks, run.above, run.full = stays.blocks, stays.above, stays.full
        run.upto, run.gaps = stays.upto, stays.gaps
        self._all[leaves] = None
        for block in leaves.blocks:
            self.of[block] = leaves
        return run if stays is first else leaves
