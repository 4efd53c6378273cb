"""`make fuzz`: mutations of what is kept, with other seeds each time; what breaks a parser is kept beside the others.

    python tests/fuzz/longer.py [--seconds 3600] [--only NAME] [--seed N]

It also keeps the input whose reading took the most processor time, and prints that time: no parser should hold the
event loop for long.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.parsers import KEPT, PARSERS, kept, mutated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--only", choices=PARSERS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    names = [given.only] if given.only else list(PARSERS)
    print(f"seed {given.seed}", flush=True)
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            one, inputs, rng = PARSERS[name], kept(name), random.Random(f"{given.seed} {name}")
            until, count, longest, culprit = time.monotonic() + given.seconds / len(names), 0, 0.0, b""
            while time.monotonic() < until:
                data = mutated(rng, inputs)
                began = time.thread_time()
                try:
                    one.read(data, Path(folder))
                except one.refuses:
                    pass
                except Exception:
                    broken += 1
                    path = KEPT / name / hashlib.sha256(data).hexdigest()[:16]
                    path.write_bytes(data)
                    print(f"{name}: kept as {path}", flush=True)
                    traceback.print_exc(limit=-3)
                took = time.thread_time() - began
                count += 1
                if took > longest:
                    longest, culprit = took, data
            print(f"{name}: {count} inputs, the longest {longest * 1e3:.1f} ms for {len(culprit)} bytes", flush=True)
    print(f"{broken} inputs broke a parser")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
