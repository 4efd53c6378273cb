"""Prefill and decode workers of SGLang on one GPU: are answers the same, does anything stay behind, does a kill show?

    PYTHONPATH=SITE python benchmarks/gpu/sglang_handoff.py           # five engines; 4 minutes
    python benchmarks/gpu/sglang_handoff.py --stand-in                # mockers instead, on a CPU

SITE is a folder of unpacked wheels, as for `sglang.py`, with NIXL; SGLang imports its CUDA 13 wheel only under the
name `nixl`. Two prefill and two decode workers serve one model, and one worker without a role serves it elsewhere.

- `identical`: greedy answers of the pairs and of the worker without a role, one at a time.
- `cancels`: clients that leave at random moments; afterwards each worker's cache must be free of what they held.
- `recomputed`: how many answers of the worker without a role are the same when it is given its own first tokens as
  a part of a prompt. It is what a stream goes through that moves after a kill, without a kill and without a hand-off.
- `decode killed`, `prefill killed`: the processes of a worker and of its engine, under streams that must all end whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

sys.path.pop(0)  # there the file beside this one would hide SGLang
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from disaggregation import Clients, Processes
from gpu.compare import environment
from gpu.measured import versions
from gpu.sglang import FLAGS
from processes import REPOSITORY, free_port
from prompts import MODEL, Prompts, make_model

ROLES = ("prefill", "prefill", "decode", "decode")
ENGINE = (*FLAGS, "--disable-cuda-graph", "--context-length", "4096", "--max-running-requests", "64",
          "--mem-fraction-static", "0.3", "--max-total-tokens", "65536")  # fmt: skip
NIXL = ("--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b", help="or bundled, whose answers are sure (%(default)s)")
    parser.add_argument("--requests", type=int, default=50, help="whose answers are compared (%(default)s)")
    parser.add_argument("--cancels", type=int, default=200)
    parser.add_argument("--streams", type=int, default=16, help="beside each kill (%(default)s)")
    parser.add_argument("--limit", type=float, default=270, help="seconds in all (%(default)s)")
    parser.add_argument("--stand-in", action="store_true", help="mockers instead of SGLang")
    parser.add_argument("--flags", default="", help="further flags of SGLang, in one text")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        asyncio.run(_within(options, Path(place)))


async def _within(options: argparse.Namespace, place: Path) -> None:
    try:
        async with asyncio.timeout(options.limit):
            await show(options, place)
    except TimeoutError:
        say(error=f"no time was left after {options.limit:.0f} s")


async def show(options: argparse.Namespace, place: Path) -> None:
    model = _model(options, place)
    async with AsyncExitStack() as running:
        pairs = Processes(place / "pairs", **environment())
        alone = Processes(place / "alone", **environment())
        running.push_async_callback(pairs.close)
        running.push_async_callback(alone.close)
        running.callback(_end_engines)
        http = await running.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120))
        )
        begun = time.monotonic()
        workers, _ = await asyncio.gather(
            asyncio.gather(*(_worker(pairs, options, model, role) for role in ROLES)),
            _worker(alone, options, model, None),
        )
        split = Clients(await pairs.frontend("--migration-limit", "3"), http)
        whole = Clients(await alone.frontend(), http)
        for clients in (split, whole):
            await clients.until_served(MODEL)
        say(what="ready", seconds=round(time.monotonic() - begun, 1), versions=versions())
        by_role = {role: [w for w, its in zip(workers, ROLES, strict=True) if its == role] for role in ROLES}
        await identical(split, whole, options)
        await recomputed(whole, options)
        await cancels(split, options)
        await killed("decode", by_role["decode"][0], split, whole, options)
        await killed("prefill", by_role["prefill"][0], split, whole, options)


def _model(options: argparse.Namespace, place: Path) -> Path:
    if options.stand_in:
        return make_model(place / "model")
    if options.shape == "bundled":
        sys.path.insert(0, str(REPOSITORY / "src"))
        from dynamo.model import bundled

        return bundled()
    from gpu.workers import model  # needs PyTorch

    return model(place / "model", options.shape)


async def _worker(
    processes: Processes, options: argparse.Namespace, model: Path, role: str | None
) -> asyncio.subprocess.Process:
    port = str(free_port())
    words = ["dynamo.sglang", str(model), "--model-name", MODEL, *ENGINE, *options.flags.split()]
    roles = ["--disaggregation-mode", role, *NIXL, port] if role else []
    if options.stand_in:
        words = ["dynamo.mocker", "--model-path", str(model), "--model-name", MODEL]
        roles = ["--disaggregation-mode", role] if role else []
        roles += ["--bootstrap-ports", port] if role == "prefill" else []
    child, _ = await processes.start(*words, *roles, until="serves" if options.stand_in else "worker for")
    return child


async def identical(split: Clients, whole: Clients, options: argparse.Namespace) -> None:
    chance, prompts, equal, first = random.Random(3), Prompts(31), 0, ""
    for _ in range(options.requests):
        prompt, length = prompts.next(chance.choice((20, 300, 1500))), chance.choice((1, 16, 48))
        answers = [(await clients.ask(MODEL, prompt, length))["choices"][0]["text"] for clients in (split, whole)]
        equal += answers[0] == answers[1]
        if answers[0] != answers[1]:
            first = first or f"{answers[0][:80]!r}, alone {answers[1][:80]!r}"
    say(what="identical", equal=equal, of=options.requests, first_other=first)


async def cancels(split: Clients, options: argparse.Namespace) -> None:
    chance, prompts = random.Random(4), Prompts(32)

    async def leave() -> bool:
        """True if the client left before the answer ended."""
        asked = asyncio.create_task(split.ask(MODEL, prompts.next(chance.choice((20, 800))), 64))
        done, _ = await asyncio.wait([asked], timeout=chance.random() * 0.4)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return not done

    left = 0
    for _ in range(options.cancels // 8):
        left += sum(await asyncio.gather(*(leave() for _ in range(8))))
    begun = time.monotonic()
    for _ in range(90):
        if (cleared := await split.cleared()) == len(ROLES):
            break
        await asyncio.sleep(0.5)
    after = (await split.ask(MODEL, "one two three", 8))["usage"]["completion_tokens"] == 8
    say(what="cancels", clients_that_left=left, workers_with_a_free_cache=cleared, of=len(ROLES),
        seconds=round(time.monotonic() - begun, 1), answers_after=after)  # fmt: skip


async def recomputed(whole: Clients, options: argparse.Namespace) -> None:
    prompts, shown = Prompts(40 + len("decode")), {"return_token_ids": True}
    asked = [prompts.next(200) for _ in range(options.streams)]
    answers = await asyncio.gather(*(whole.ask(MODEL, prompt, 96, **shown) for prompt in asked))
    again = await asyncio.gather(*(whole.ask(MODEL, prompt, 96, **shown) for prompt in asked))
    choices = [answer["choices"][0] for answer in answers]
    equal = {}
    for cut in (8, 32, 64):
        rests = await asyncio.gather(
            *(
                whole.ask(MODEL, choice["prompt_token_ids"] + choice["token_ids"][:cut], 96 - cut, **shown)
                for choice in choices
            )
        )
        equal[cut] = sum(
            choice["token_ids"][cut:] == rest["choices"][0]["token_ids"]
            for choice, rest in zip(choices, rests, strict=True)
        )
    same = sum(one["token_ids"] == other["choices"][0]["token_ids"] for one, other in zip(choices, again, strict=True))
    say(what="recomputed", asked_twice_equal=same, equal_by_cut=equal, of=len(asked))


async def killed(
    role: str, worker: asyncio.subprocess.Process, split: Clients, whole: Clients, options: argparse.Namespace
) -> None:
    prompts = Prompts(40 + len(role))
    asked = [prompts.next(200) for _ in range(options.streams)]
    alone = await asyncio.gather(*(whole.ask(MODEL, prompt, 96) for prompt in asked))
    running = [asyncio.create_task(split.ask(MODEL, prompt, 96)) for prompt in asked]
    await asyncio.sleep(0.3)
    under_way = sum(not each.done() for each in running)
    for pid in (*_below(worker.pid), worker.pid):
        os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    results = await asyncio.gather(*running, return_exceptions=True)
    seconds = time.monotonic() - begun
    failed = [str(each)[:200] for each in results if isinstance(each, BaseException)]
    equal = sum(
        not isinstance(each, BaseException) and each["choices"][0]["text"] == other["choices"][0]["text"]
        for each, other in zip(results, alone, strict=True)
    )
    later = await asyncio.gather(*(split.ask(MODEL, prompt, 8) for prompt in asked), return_exceptions=True)
    say(what=f"{role} killed", under_way=under_way, failed=len(failed), equal=equal, of=len(asked),
        seconds=round(seconds, 1), failed_later=sum(isinstance(each, BaseException) for each in later),
        reasons=failed[:3])  # fmt: skip


def _below(pid: int) -> list[int]:
    """The processes that this one started, and those that they did."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *_below(child)]
    return found


def _end_engines() -> None:
    for pid in _below(os.getpid()):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue


def say(**facts: Any) -> None:
    line = json.dumps({"part": "handoff", **facts})
    print(line, flush=True)
    if out := os.environ.get("OUT"):
        with (Path(out) / "handoff.jsonl").open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
