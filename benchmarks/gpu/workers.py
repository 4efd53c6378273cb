"""Workers of vLLM with random weights behind frontends, and a client that measures them."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu.compare import SHAPES, _config, environment, padded, say, versions
from gpu.random_weights import write_weights
from processes import Stack, fetch, free_port, metric_total
from prompts import MODEL, make_model

BLOCK = 32
"""Tokens; a multiple of every block size that is used here."""


class Answer(Struct, frozen=True):
    """`times`: when the request was sent and each chunk came."""

    text: str
    times: list[float]
    cached_tokens: int | None

    @property
    def ttft(self) -> float:
        return self.times[1] - self.times[0]


class Fleet(Stack):
    """Frontends and workers, whose logs are kept in the folder `$OUT`."""

    def __init__(self, folder: Path, options: argparse.Namespace, environ: dict[str, str]) -> None:
        super().__init__(folder, environ={**environment(), "DYN_SYSTEM_HOST": "127.0.0.1", **environ})
        self._options = options
        self.metrics: dict[str, str] = {}

    def worker(self, name: str, *flags: str) -> None:
        port = free_port()
        self.metrics[name] = f"http://127.0.0.1:{port}"
        self.environ["DYN_SYSTEM_PORT"] = str(port)
        words = (str(self._options.model), "--model-name", MODEL, "--discovery-backend", "file")
        self.start(name, "-m", "dynamo.vllm", *words, *flags)
        del self.environ["DYN_SYSTEM_PORT"]

    def until_ready(self, *names: str) -> None:
        begun = time.monotonic()
        waiting = {name: self.children[name] for name in names}
        while waiting:
            for name, child in [*waiting.items()]:
                child.check()
                if "worker for" in child.log.read_text(errors="replace"):
                    say(f"{name} is ready after {time.monotonic() - begun:.0f} s")
                    del waiting[name]
                elif time.monotonic() - begun > self._options.patience:
                    raise SystemExit(f"{name} is not ready:\n{child.output()}")
            time.sleep(0.1)

    def policy(self, name: str, *flags: str) -> str:
        self.frontend(*flags, name=f"frontend-{name}")
        self.until("/v1/models", f'"{MODEL}"'.encode())
        return self.url

    def total(self, worker: str, metric: str) -> float:
        return metric_total(self.metrics[worker], metric)

    def page(self, worker: str) -> str:
        return fetch(self.metrics[worker], "/metrics").decode()

    def stop(self, *names: str) -> None:
        super().stop(*names)
        if out := os.environ.get("OUT"):
            for log in self.folder.glob("*.log"):
                shutil.copy(log, Path(out) / f"{self.folder.name}-{log.name}")


def common(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--short", action="store_true", help="short prompts and few of them")
    parser.add_argument("--patience", type=float, default=240, help="seconds for engines to start (%(default)s)")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return parser


def model(folder: Path, shape: str) -> Path:
    begun = time.monotonic()
    made = padded(make_model(folder, **_config(shape)))
    write_weights(made)
    say(f"wrote the weights of {shape} in {time.monotonic() - begun:.0f} s")
    return made


def tokens(seed: int, count: int) -> list[int]:
    """A prompt that shares no block with others."""
    return random.Random(seed).choices(range(300, 10_000), k=count)


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=600), connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20
    )


async def ask(
    http: aiohttp.ClientSession, url: str, prompt: Sequence[int], length: int, times: list[float] | None = None
) -> Answer:
    """`times` may be the caller's own list, to see the chunks of an answer that has not ended."""
    body = {"model": MODEL, "prompt": list(prompt), "max_tokens": length, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    text, times, cached = [], [] if times is None else times, None
    times.append(time.monotonic())
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {(await answer.text())[:500]}")
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise SystemExit(f"the stream ended with {chunk}")
            if chunk.get("choices"):
                times.append(time.monotonic())
                text.append("".join(choice["text"] for choice in chunk["choices"]))
            if usage := chunk.get("usage"):
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Answer("".join(text), times, cached)


async def clear(http: aiohttp.ClientSession, url: str) -> None:
    async with http.post(f"{url}/clear_kv_blocks") as answer:
        answer.raise_for_status()


def report(what: str, options: argparse.Namespace, **figures: Any) -> None:
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}
    line = json.dumps({"what": what, "shape": options.shape, **rounded, "versions": versions()})
    print(line, flush=True)
    if out := os.environ.get("OUT"):
        with (Path(out) / "results.jsonl").open("a") as file:
            file.write(line + "\n")
