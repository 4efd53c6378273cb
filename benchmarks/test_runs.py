"""Runs `make test` several times from a fresh clone, on a quiet machine and beside busy loops, and notes each result.

A line per run goes to results/test-runs.md: one green run says little, twenty say much.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "test-runs.md"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
COUNTS = re.compile(r"^=*\s*(\d+ (?:passed|failed|error).*?) in [\d.]+s", re.MULTILINE)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def fresh_clone(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="test-runs-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "--quiet", commit], check=True)
        yield clone


def run_once(commit: str, target: str, loops: int) -> str:
    """The row of the table."""
    before = os.getloadavg()[0]
    with fresh_clone(commit) as clone:
        print(f"installing into {clone}", flush=True)
        subprocess.run(["make", "-s", ".venv/.ready-dev"], cwd=clone, check=True)
        with busy_loops(loops):
            began = time.monotonic()
            done = subprocess.run(["make", target], cwd=clone, capture_output=True, text=True, check=False)
            minutes = (time.monotonic() - began) / 60
    counts = COUNTS.findall(done.stdout)
    failed = FAILED.findall(done.stdout)
    if done.returncode and not failed:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
    names = ", ".join(f"`{name}`" for name in failed) or "no summary"
    result = "green" if done.returncode == 0 else f"**red**: {names}"
    beside = f"{loops} busy loops" if loops else "nothing of ours"
    said = counts[-1] if counts else ""
    return f"| {date.today()} | {commit[:8]} | {beside}, load {before:.0f} | {minutes:.1f} | {said} | {result} |"


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--plain", type=int, default=1, help="runs beside nothing of ours")
    flags.add_argument("--loaded", type=int, default=1, help="runs beside two busy loops per processor")
    flags.add_argument("--target", default="test", help="of the Makefile")
    asked = flags.parse_args()
    words = ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]
    commit = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    red = 0
    for loops in [0] * asked.plain + [2 * (os.cpu_count() or 1)] * asked.loaded:
        row = run_once(commit, asked.target, loops)
        red += "**red**" in row
        print(row, flush=True)
        with RESULTS.open("a") as results:
            results.write(row + "\n")
    sys.exit(1 if red else 0)


if __name__ == "__main__":
    main()
