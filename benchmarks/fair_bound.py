"""Random histories of tenants that share workers, against the bound of the virtual token counter.

    python benchmarks/fair_bound.py [--histories 1000000] [--processes 2] [--first 0] [--compiled]

Each history is 150 steps of 3 tenants over one to four frontends: `tests/router/choice/test_service.py`.
`--compiled` runs the same sources compiled by mypyc, about twice as fast; it needs a C compiler, and compares both.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

CHUNK = 1000
PYTHON = "router.choice.test_service"
SOURCES = {
    "dynamo.router.choice.turns": "fair_turns",
    "dynamo.router.choice.service": "fair_service",
    "dynamo.router.choice.elsewhere": "fair_elsewhere",
    PYTHON: "fair_model",
}
STRUCTS = "fair_structs"
"""The classes that mypyc would compile to something else."""


def compile_into(folder: Path) -> str:
    """Compile the router's part and the model of the test; the name of the latter."""
    structs = ["from __future__ import annotations", "from msgspec import Struct", f"from {PYTHON} import *"]
    for module, name in SOURCES.items():
        place = REPOSITORY / ("tests" if module == PYTHON else "src") / f"{module.replace('.', '/')}.py"
        kept = []
        for node in ast.parse(text := place.read_text()).body:
            source = ast.get_source_segment(text, node) or ""
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Struct" for base in node.bases):
                structs.append(source)
                kept.append(f"from {STRUCTS} import {node.name}")
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                continue
            elif not source.startswith(("import pytest", "from hypothesis", "from msgspec")):
                kept.append(source)
        joined = "\n".join(kept)
        for other, renamed in SOURCES.items():
            joined = joined.replace(f"from {other} ", f"from {renamed} ")
        (folder / f"{name}.py").write_text(joined + "\n")
    imports = "from dynamo.router.choice.elsewhere import TenantKey\nfrom dynamo.protocols.engine import Tenant"
    (folder / f"{STRUCTS}.py").write_text("\n".join([*structs[:2], imports, structs[2], *structs[3:]]) + "\n")
    mypyc = [str(Path(sys.executable).with_name("mypyc")), "--ignore-missing-imports"]
    names = [f"{name}.py" for name in SOURCES.values()]
    built = subprocess.run([*mypyc, *names], cwd=folder, capture_output=True, text=True, check=False)
    if built.returncode:
        raise SystemExit(f"mypyc failed:\n{built.stdout[-2000:]}{built.stderr[-2000:]}")
    return "fair_model"


def model_at(folder: str) -> Any:
    if not folder:
        return importlib.import_module(PYTHON)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(SOURCES[PYTHON])


def largest(folder: str, first: int) -> dict[int, tuple[float, float, int]]:
    """By the number of frontends: the largest gap, the largest share of the bound, and the histories beyond it."""
    model = model_at(folder)
    found = dict.fromkeys(range(1, 5), (0.0, 0.0, 0))
    for seed in range(first, first + CHUNK):
        frontends = 1 + seed % 4
        gap, most = model.largest_gap(model.Worker("abc", seed, frontends), 150)
        bound = model.BOUND + (most if frontends > 1 else 0.0)
        before = found[frontends]
        if gap > bound:
            print(f"seed {seed}, {frontends} frontends: {gap:.0f} of {bound:.0f}", flush=True)
        found[frontends] = max(gap, before[0]), max(gap / bound, before[1]), before[2] + (gap > bound)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    total = dict.fromkeys(range(1, 5), (0.0, 0.0, 0))
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(given.processes) as pool:
        if given.compiled:
            compile_into(Path(folder))
            check_equal(folder, given.first)
        chunks = range(given.first, given.first + given.histories, CHUNK)
        for chunk, found in zip(
            chunks, pool.map(partial(largest, folder if given.compiled else ""), chunks), strict=True
        ):
            for count, (gap, share, beyond) in found.items():
                before = total[count]
                total[count] = max(gap, before[0]), max(share, before[1]), before[2] + beyond
            if not (chunk - given.first) % (20 * CHUNK):
                print(f"{time.monotonic() - began:5.0f} s: to seed {chunk + CHUNK}, {total}", flush=True)
    for count, (gap, share, beyond) in total.items():
        print(f"{count} frontends: largest gap {gap:.0f}, at most {share:.2f} of its bound, {beyond} beyond it")
    print(f"{given.histories} histories in {time.monotonic() - began:.0f} s")
    sys.exit(any(beyond for _, _, beyond in total.values()))


def check_equal(folder: str, first: int) -> None:
    python, compiled = model_at(""), model_at(folder)
    assert compiled.__file__.endswith(".so"), compiled.__file__
    for seed in range(first, first + 40):
        one, other = (each.largest_gap(each.Worker("abc", seed, 1 + seed % 4), 150) for each in (python, compiled))
        assert one == other, (seed, one, other)


if __name__ == "__main__":
    main()
