"""A draft model and n-grams on a GPU: do engines start with them, answer the same, and say how many guesses were right?

    PYTHONPATH=SITE python benchmarks/gpu/speculation.py sglang --shape 0.5b      # or vllm; three engines, two minutes
    PYTHONPATH=SITE python benchmarks/gpu/speculation.py vllm --shape bundled     # whose answers are sure of themselves
    python benchmarks/gpu/speculation.py mocker --ways alone                      # proves on a CPU that it works

SITE is a folder of unpacked wheels, as for `sglang.py` and `compare.py`. Each way is a worker behind a frontend:
`alone` guesses nothing, `draft` has the model itself as its draft model, so that nearly all guesses are right, and
`ngram` guesses from the prompt. All are asked the same greedily, then for JSON; each prints a line. A larger step has
other last bits: with random weights, where many tokens are nearly as likely as the first, greedy answers then part;
those of the bundled model do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp

sys.path.pop(0)  # there a file beside this one would hide SGLang
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu.compare import SHAPES, environment
from gpu.measured import versions
from gpu.sglang import FLAGS, PERSON, keep
from processes import REPOSITORY, Stack, free_port, metric_total
from prompts import MODEL, Prompts, make_model

GUESSES = {"alone": None, "draft": "itself", "ngram": "ngram"}
ENGINES = {
    "sglang": [*FLAGS, "--context-length", "2048", "--max-running-requests", "16",
               "--mem-fraction-static", "0.3", "--max-total-tokens", "65536"],
    "vllm": ["--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager", "--gpu-memory-utilization", "0.2",
             "--kv-cache-memory-bytes", "2G"],
    "mocker": [],
}  # fmt: skip
KNOWN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = (
    "What is the capital of France?", "What is the capital of Japan?", "Say hello", "Tell me a story",
    "What color is the sky?",
)  # fmt: skip
"""The bundled model knows the answers."""
COUNT = "dynamo_component_{}draft_tokens_total"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--shape", choices=[*SHAPES, "bundled"], default="0.5b")
    parser.add_argument("--ways", default=",".join(GUESSES), help="of them (%(default)s)")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (%(default)s)")
    parser.add_argument("--flags", default="", help="further flags of the engine, in one text: --flags='--page-size 1'")
    parser.add_argument("--patience", type=float, default=150, help="seconds for engines to start (%(default)s)")
    parser.add_argument("--limit", type=float, default=220, help="seconds in all (%(default)s)")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    with tempfile.TemporaryDirectory(prefix="bench-") as place, ExitStack() as running:
        model = _model(options, Path(place))
        begun = time.monotonic()
        ways = {name: running.enter_context(Way(name, Path(place), options, model)) for name in options.ways.split(",")}
        alone: list[str] = []
        for name, way in ways.items():
            try:
                way.wait(options.patience - (time.monotonic() - begun))
            except SystemExit as error:
                print(json.dumps({"engine": options.engine, "way": name, "error": str(error)[-1500:]}), flush=True)
                continue
            alone = asyncio.run(way.ask(alone, options.limit - (time.monotonic() - begun)))


def _model(options: argparse.Namespace, place: Path) -> Path:
    if options.shape == "bundled":
        sys.path.insert(0, str(REPOSITORY / "src"))
        from dynamo.model import bundled

        return bundled()
    if options.engine == "mocker":
        return make_model(place / "model")
    from gpu.workers import model  # needs PyTorch

    return model(place / "model", options.shape)


class Way:
    def __init__(self, name: str, place: Path, options: argparse.Namespace, model: Path) -> None:
        self._name, self._options = name, options
        self._stack = stack = Stack(place / name, environ=environment())
        stack.frontend()
        self._status = f"http://127.0.0.1:{(port := free_port())}"
        stack.environ |= {"DYN_SYSTEM_PORT": str(port), "DYN_SYSTEM_HOST": "127.0.0.1"}
        guess = {"itself": str(model), "ngram": "ngram"}.get(GUESSES[name] or "")
        flags = [*ENGINES[options.engine], *options.flags.split()]
        flags += ["--draft-model", guess, "--draft-tokens", "3"] if guess else []
        words = (str(model), "--model-name", MODEL, "--discovery-backend", "file")
        stack.start("worker", "-m", f"dynamo.{options.engine}", *words, *flags)

    def __enter__(self) -> Way:
        return self

    def wait(self, seconds: float) -> None:
        self._stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=seconds)

    async def ask(self, alone: list[str], seconds: float) -> list[str]:
        """Print what was found, and return the answers, or those of the model `alone`."""
        options, prompts = self._options, Prompts(9)
        asked = [KNOWN.format(known) for known in QUESTIONS] if options.shape == "bundled" else []
        bodies: list[dict[str, Any]] = [
            {"prompt": prompt, "max_tokens": options.tokens, "temperature": 0, "ignore_eos": not asked}
            for prompt in asked or [prompts.next(60) for _ in range(options.requests)]
        ]
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        timeout = aiohttp.ClientTimeout(total=max(5.0, seconds))
        async with aiohttp.ClientSession(timeout=timeout) as self._http:
            begun = time.monotonic()
            texts = [str((await self._answer("completions", body))["choices"][0]["text"]) for body in bodies]
            took = time.monotonic() - begun
            valid = 0
            for number in range(20 if options.engine != "mocker" else 0):
                chat = {"messages": [{"role": "user", "content": f"person {number}"}], "response_format": form}
                message = (await self._answer("chat/completions", {**chat, "max_tokens": 120, "temperature": 0}))[
                    "choices"
                ]
                valid += set(json.loads(message[0]["message"]["content"])) == {"name", "motto", "age"}
            shares = await self._acceptance()
        guessed = metric_total(self._status, COUNT.format(""))
        right = metric_total(self._status, COUNT.format("accepted_"))
        equal = sum(one == other for one, other in zip(texts, alone or texts, strict=True))
        line = {
            "engine": options.engine, "way": self._name, "equal_to_alone": equal, "of": len(texts),
            "requests_per_s_alone": round(len(texts) / took, 2), "valid_json": valid, "guessed": guessed,
            "right": right, "share": round(right / guessed, 3) if guessed else None, "fleet": shares,
            "versions": versions(),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        return alone or texts

    async def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._http.post(f"{self._stack.url}/v1/{path}", json={"model": MODEL, **body}) as answered:
            found: dict[str, Any] = await answered.json(content_type=None)
            if answered.status != 200:
                raise SystemExit(f"{self._name}: {answered.status}: {found}")
            return found

    async def _acceptance(self) -> list[float]:
        """The acceptance of the workers, as the page of the fleet shows it; it follows them from the first look on."""
        async with self._http.get(f"{self._stack.url}/fleet/events") as stream:
            lines = 0
            async for line in stream.content:
                lines += line.startswith(b"data: ")
                if b"draft_acceptance" in line:
                    document = json.loads(line[6:])
                    return [row["draft_acceptance"] for row in document["workers"].values() if row]
                if self._name == "alone":
                    return []
        return []

    def __exit__(self, *_: object) -> None:
        keep(self._stack.folder)
        self._stack.stop()


if __name__ == "__main__":
    main()
