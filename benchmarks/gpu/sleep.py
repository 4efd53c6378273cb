"""Puts our vLLM worker on a GPU to sleep and wakes it: memory freed as the driver sees it, time, the same answer after.

    PYTHONPATH=SITE python benchmarks/gpu/sleep.py --shape 0.5b         # one minute

One line of JSON for each level on standard output. Level 1 keeps the weights in host memory; the answers before and
after must be equal. Level 2 forgets them: random weights cannot be loaded again, so only the memory is compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu.compare import SHAPES, _config, environment, padded, say, versions
from processes import Stack, free_port
from prompts import MODEL, Prompts, make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--patience", type=float, default=300, help="seconds for the engine to start (%(default)s)")
    parser.add_argument("vllm", nargs="*", help="further flags of vLLM, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        model = padded(make_model(Path(place) / "model", **_config(options.shape)))
        status = free_port()
        empty = used_mib()
        with Stack(Path(place) / "stack", environ=environment()) as stack:
            asked = ("in=dyn://bench.backend.generate", "out=vllm", str(model), "--model-name", MODEL)
            flags = ("--load-format", "dummy", "--max-model-len", "2048", "--enforce-eager", "--enable-sleep-mode")
            stack.frontend()
            stack.environ |= {"DYN_SYSTEM_PORT": str(status), "DYN_SYSTEM_HOST": "127.0.0.1"}
            stack.start("worker", "-m", "dynamo.cli.main", *asked, "--", *flags, *options.vllm)
            stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=options.patience)
            say("ready")
            for level in (1, 2):
                measure(stack, f"http://127.0.0.1:{status}/engine/control", level, empty, options.shape)


def measure(stack: Stack, controls: str, level: int, empty: int, shape: str) -> None:
    before, awake = answer(stack) if level == 1 else "", used_mib()
    begun = time.monotonic()
    slept = post(f"{controls}/sleep", {"level": level})
    sleeping_s, asleep = time.monotonic() - begun, used_mib()
    begun = time.monotonic()
    woken = post(f"{controls}/wake_up", {})
    waking_s, again = time.monotonic() - begun, used_mib()
    line = {
        "shape": shape, "level": level, "empty_mib": empty, "awake_mib": awake, "asleep_mib": asleep,
        "again_mib": again, "freed_of_own": round((awake - asleep) / max(1, awake - empty), 3),
        "sleep_s": round(sleeping_s, 2), "wake_s": round(waking_s, 2), "slept": slept, "woken": woken,
        "same_answer": answer(stack) == before if level == 1 else None, "versions": versions(),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def answer(stack: Stack) -> str:
    """A greedy one, long enough that wrong weights or a wrong cache would show."""
    body = {"model": MODEL, "prompt": Prompts(1).next(200), "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    return str(post(f"{stack.url}/v1/completions", body)["choices"][0]["text"])


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answered:
        return json.loads(answered.read())


def used_mib() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(int, subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()))


if __name__ == "__main__":
    main()
