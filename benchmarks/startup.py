"""Start-up times: `dynamo-run --help` (target 0.3 s), and the first answer of a frontend and of `dynamo-run in=http`
with the bundled model (target 3 s)."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from dynamo.model import ModelError
from dynamo.model.bundled import bundled as bundled_model
from figures import short, table
from load import body
from processes import REPOSITORY, Stack, free_port
from prompts import MODEL, make_model

RUN = "from dynamo.cli.main import main; main()"


def help_text(_: Path) -> float:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", RUN, "--help"], env=environ, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def frontend_and_worker(folder: Path) -> float:
    """Both start at once; the clock stops when a request has been answered."""
    model = folder / "model"
    with Stack(folder / f"stack-{time.monotonic_ns()}") as stack:
        began = time.monotonic()
        stack.frontend()
        stack.mocker(model, MODEL, "--speedup-ratio", "1000000")
        until_answered(stack, body("hello", 1, stream=False))
        return time.monotonic() - began


def frontend_beside_a_worker(folder: Path) -> float:
    """The worker is already running; the clock stops when the new frontend has answered a request."""
    model = folder / "model"
    with Stack(folder / f"stack-{time.monotonic_ns()}") as stack:
        worker = stack.mocker(model, MODEL, "--speedup-ratio", "1000000")
        while "serves" not in worker.output():
            worker.check()
            time.sleep(0.01)
        began = time.monotonic()
        stack.frontend()
        until_answered(stack, body("hello", 1, stream=False))
        return time.monotonic() - began


def bundled(folder: Path) -> float:
    with Stack(folder / f"stack-{time.monotonic_ns()}") as stack:
        port = free_port()
        stack.url = f"http://127.0.0.1:{port}"
        began = time.monotonic()
        stack.start("run", "-c", RUN, "in=http", "--http-port", str(port))
        while not (listed := stack.get("/v1/models")) or b'"data":[]' in listed:
            time.sleep(0.005)
        name = json.loads(listed)["data"][0]["id"]
        until_answered(stack, body("hello", 1, stream=False, model=name))
        return time.monotonic() - began


def has_bundled_model() -> bool:
    try:
        bundled_model()
    except ModelError:
        return False
    return True


def until_answered(stack: Stack, content: bytes) -> None:
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    while True:
        for child in stack.children.values():
            child.check()
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request("POST", "/v1/chat/completions", content, {"Content-Type": "application/json"})
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cases: list[tuple[str, str, Callable[[Path], float]]] = [
        ("frontend and worker, to the first answer", "", frontend_and_worker),
        ("frontend beside a running worker, to the first answer", "", frontend_beside_a_worker),
    ]
    if find_spec("dynamo.cli.main"):
        cases.insert(0, ("dynamo-run --help", "0.3", help_text))
        if has_bundled_model():
            cases.append(("dynamo-run in=http, bundled model, to the first answer", "3", bundled))
        else:
            print("this build has no bundled model: its row is left out", file=sys.stderr)
    else:
        print("dynamo-run is not part of this build: its rows are left out", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        make_model(folder / "model")
        for name, target, case in cases:
            times = [case(folder) for _ in range(options.repeats)]
            rows.append([name, short(statistics.median(times)), short(max(times)), target])
    print(table(["what", "median s", "max s", "target"], rows))


if __name__ == "__main__":
    main()
