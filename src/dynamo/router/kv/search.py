"""How far many workers at once hold a chain of blocks, where a dict says per block who holds it."""

from __future__ import annotations

from collections.abc import Sequence


def prefix_runs(holders: dict[int, int], chain: Sequence[int], alive: int) -> list[tuple[int, int]]:
    """Split the workers in `alive` by how many leading blocks of `chain` they hold: [(depth, mask)], depth > 0.

    Needs the prefix property: whoever holds block i holds all before it. Then the mask only shrinks along the chain,
    and the point where it next changes is found by doubling steps and halving back.
    """
    runs: list[tuple[int, int]] = []
    end = len(chain)
    get = holders.get
    low = 0
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
        runs.append((high, mask ^ rest))
        mask, low = rest, high
    return runs


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
