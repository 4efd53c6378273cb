"""Random histories of tenants that share workers, against the bound of the virtual token counter.

    python benchmarks/fair_bound.py [--histories 1000000] [--processes 2] [--first 0]

Each history is 150 steps of 3 tenants over one to four frontends: `tests/router/choice/test_service.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from router.choice.test_service import BOUND, Worker, largest_gap

CHUNK = 1000


def largest(first: int) -> dict[int, tuple[float, float, int]]:
    """By the number of frontends: the largest gap, the largest share of the bound, and the histories beyond it."""
    found = dict.fromkeys(range(1, 5), (0.0, 0.0, 0))
    for seed in range(first, first + CHUNK):
        frontends = 1 + seed % 4
        gap, most = largest_gap(Worker("abc", seed, frontends), 150)
        bound = BOUND + (most if frontends > 1 else 0.0)
        before = found[frontends]
        if gap > bound:
            print(f"seed {seed}, {frontends} frontends: {gap:.0f} of {bound:.0f}", flush=True)
        found[frontends] = max(gap, before[0]), max(gap / bound, before[1]), before[2] + (gap > bound)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="seed")
    given = parser.parse_args()
    began = time.monotonic()
    total = dict.fromkeys(range(1, 5), (0.0, 0.0, 0))
    with ProcessPoolExecutor(given.processes) as pool:
        for found in pool.map(largest, range(given.first, given.first + given.histories, CHUNK)):
            for count, (gap, share, beyond) in found.items():
                before = total[count]
                total[count] = max(gap, before[0]), max(share, before[1]), before[2] + beyond
    for count, (gap, share, beyond) in total.items():
        print(f"{count} frontends: largest gap {gap:.0f}, at most {share:.2f} of its bound, {beyond} beyond it")
    print(f"{given.histories} histories in {time.monotonic() - began:.0f} s")
    sys.exit(any(beyond for _, _, beyond in total.values()))


if __name__ == "__main__":
    main()
