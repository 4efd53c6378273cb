"""How far many workers at once hold a chain of blocks, where a dict says per block who holds it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from dynamo.router.kv.slots import slots_in

_SHORT = 16
_STRETCH = 64


def prefix_depths(holders: dict[int, int], chain: Sequence[int], alive: int, slots: int) -> list[int]:
    """How many leading blocks of `chain` each worker in `alive` holds, by slot.

    Needs the prefix property: whoever holds block i holds all before it. Then the mask only shrinks along the chain,
    and the point where it next changes is found by doubling steps and halving back. Where it changes every few blocks,
    the next ones are looked at one by one.
    """
    depths = [0] * slots
    end = len(chain)
    get = holders.get
    begin = low = 0
    mask = alive & get(chain[0], 0) if end else 0
    while mask:
        # All of `mask` hold block `low`; those who hold block `high` as well are `rest`, not all of them.
        high, rest, step = end, 0, 1
        while (at := low + step) < end:
            if (held := get(chain[at], 0) & mask) != mask:
                high, rest = at, held
                break
            low = at
            step *= 2
        while high - low > 1:
            at = (low + high) // 2 if high < end else end - 1
            if (held := get(chain[at], 0) & mask) == mask:
                low = at
            else:
                high, rest = at, held
        put(depths, mask ^ rest, high)
        short = high - begin < _SHORT
        mask, begin, low = rest, high, high
        if short and mask:
            seen = None
            for at, held in enumerate(map(get, chain[low + 1 : low + _STRETCH], repeat(0)), low + 1):
                if held is seen:
                    continue
                seen = held
                rest = held & mask
                if lost := mask ^ rest:
                    if lost.bit_count() == 1:
                        depths[lost.bit_length() - 1] = at
                    else:
                        put(depths, lost, at)
                    mask, begin = rest, at
                    if not mask:
                        break
            low = min(low + _STRETCH, end) - 1
    return depths


def put(depths: list[int], mask: int, depth: int) -> None:
    """Write the depth of the workers in `mask`."""
    count = mask.bit_count()
    if count == 1:
        depths[mask.bit_length() - 1] = depth
    elif count == len(depths):
        depths[:] = [depth] * len(depths)
    else:
        for slot in slots_in(mask):
            depths[slot] = depth


def walked_runs(holders: dict[int, int], chain: Sequence[int], starts: dict[int, int]) -> list[tuple[int, int, int]]:
    """Runs (begin, end, workers) of consecutively held blocks, for the workers that begin at each place.

    Needs nothing of what workers hold, and looks at every block.
    """
    runs: list[tuple[int, int, int]] = []
    cohorts: list[tuple[int, int]] = []
    walking = 0
    end = len(chain)
    places = sorted(starts)
    for begin, upto in zip(places, [*places[1:], end], strict=False):
        if begin >= end:
            break
        cohorts.append((begin, starts[begin]))
        walking |= starts[begin]
        for at in range(begin, min(upto, end)):
            if lost := walking & ~holders.get(chain[at], 0):
                walking ^= lost
                runs += [(first, at, mask & lost) for first, mask in cohorts if mask & lost and at > first]
                cohorts = [(first, mask & walking) for first, mask in cohorts if mask & walking]
                if not walking:
                    break
    return runs + [(first, end, mask) for first, mask in cohorts]
