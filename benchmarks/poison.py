"""Deadly requests of one key beside the ordinary ones of another: workers lost, answers lost, answers changed.

    python benchmarks/poison.py [--killers 70] [--fields 30] [--requests 2000] [--frontends 2] [--workers 5]

Workers are real processes, replaced when they end. The killers of the first kind go to an engine in Python that aborts,
faults, exits, is killed, allocates, hangs, or aborts in the middle of its answer. Those of the second kind are
constraints in public fields of requests, sent to mistral.rs, llama.cpp and, with `--vllm PYTHON`, to vLLM by that
interpreter; the bounds and the trial that stop such constraints are switched off for them. `--fields 0` leaves them
out. Every killer is sent twice. With `--at-once N` so many are sent together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chaos.questions import Question, clear
from support.deadly_worker import DEADLY_SEED, MODES
from support.stack import Frontend, Process, Stack
from support.waiting import until

KEYS = '[killer]\nkey = "killer"\n[other]\nkey = "other"\n'
DEADLY = str(Path(__file__).parent.parent / "tests" / "support" / "deadly_worker.py")
UNGUARDED = str(Path(__file__).parent.parent / "tests" / "support" / "unguarded.py")
HANG_SECONDS = 6.0
"""After this a hung worker is killed, as a probe of its health would do."""
Fields = dict[str, Any]


class Fleet:
    """Keeps a number of workers alive, and counts those that ended."""

    def __init__(self, stack: Stack, count: int, words: tuple[str, ...], interpreter: str = sys.executable) -> None:
        self.stack = stack
        self._interpreter = interpreter
        self.lost = 0
        self._count = count
        self._words = words
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for _ in range(self._count):
            await self._one()

    async def _one(self) -> None:
        process = await self.stack.python(
            *self._words, interpreter=self._interpreter, RAYON_NUM_THREADS="1", OMP_NUM_THREADS="1"
        )
        self._tasks.add(asyncio.create_task(self._watch(process)))

    async def _watch(self, process: Process) -> None:
        hangs = asyncio.create_task(self._kill_when_hung(process))
        await process.child.wait()
        hangs.cancel()
        self.lost += 1
        await self._one()

    async def _kill_when_hung(self, process: Process) -> None:
        with contextlib.suppress(AssertionError):
            await process.line("hanging")
            await asyncio.sleep(HANG_SECONDS)
            process.child.kill()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


def python_killers(count: int) -> Iterator[tuple[str, Fields]]:
    for number in range(count):
        mode = number % len(MODES)
        yield MODES[mode], {"prompt": f"deadly {number}", "seed": DEADLY_SEED + mode}


def field_killers(count: int) -> Iterator[tuple[str, Fields]]:
    """Constraints that overflow a stack, in each field of a completion that carries one."""
    for number in range(count):
        schema = chain(1300 + number) if number % 2 else arrays(1500 + number)
        match number % 3:
            case 0:
                body: Fields = {"guided_json": schema}
            case 1:
                body = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
            case _:
                body = {"structured_outputs": {"json": schema}}
        yield f"{'objects' if number % 2 else 'arrays'} in {next(iter(body))}", {
            "prompt": f"deadly {number}", "extra_body": body,
        }  # fmt: skip


def chain(links: int) -> Fields:
    definitions: Fields = {
        f"d{link}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{link + 1}"}}, "required": ["a"]}
        for link in range(links)
    }
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "required": ["a"],
        "$defs": definitions | {f"d{links}": {"type": "string"}},
    }


def arrays(links: int) -> Fields:
    definitions: Fields = {
        f"d{link}": {"type": "array", "items": {"$ref": f"#/$defs/d{link + 1}"}, "minItems": 1} for link in range(links)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{links}": {"type": "string"}}}


class Outcome:
    def __init__(self) -> None:
        self.failed: list[str] = []
        self.differ = 0
        self.answered = 0
        self.longest = 0.0


async def complete(user: openai.AsyncOpenAI, **fields: Any) -> str:
    answer = await user.completions.create(model="tiny", stream=True, **({"max_tokens": 40} | fields))
    return "".join([chunk.choices[0].text async for chunk in answer if chunk.choices])


def clients(frontends: list[Frontend], key: str) -> list[openai.AsyncOpenAI]:
    urls = [f"{each.url}/v1" for each in frontends]
    return [openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=300) for url in urls]


async def all_serve(frontends: list[Frontend], workers: int) -> None:
    """Wait until every frontend can send to this many workers."""
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer other"}) as http:
        for frontend in frontends:

            async def known(url: str = frontend.url) -> bool:
                async with http.get(f"{url}/health") as health:
                    found = (await health.json()).get("instances", ())
                return bool(sum(one["endpoint"] == "generate" for one in found) >= workers)

            await until(known)


async def ask_others(users: list[openai.AsyncOpenAI], alone: dict[str, str], requests: int, outcome: Outcome,
                     done: asyncio.Event) -> None:  # fmt: skip
    """Ask until there were this many requests and all killers were sent."""
    prompts, numbers = list(alone), iter(range(10**9))

    async def one() -> None:
        while outcome.answered + len(outcome.failed) < requests or not done.is_set():
            number = next(numbers)
            prompt, began = prompts[number % len(prompts)], time.perf_counter()
            try:
                text = await complete(users[number % len(users)], prompt=prompt, temperature=0)
            except openai.APIError as error:
                outcome.failed.append(str(error))
                continue
            outcome.answered += 1
            outcome.differ += text != alone[prompt]
            outcome.longest = max(outcome.longest, time.perf_counter() - began)
            if outcome.answered > requests:
                await asyncio.sleep(0.2)

    await asyncio.gather(*[one() for _ in range(8)])


async def clear_prompts(url: str, prompts: list[str]) -> list[str]:
    """Those in whose greedy answers each token leads the next best one by much.

    An engine rounds its sums in another way beside other requests: other answers change with no fault at all.
    """
    asked = {"model": "tiny", "max_tokens": 40, "temperature": 0}
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer other"}) as session:
        pool = [Question("/v1/completions", {**asked, "prompt": prompt}) for prompt in prompts]
        return [question.body["prompt"] for question in await clear(session, url, pool)]


async def run(name: str, words: tuple[str, ...], killers: list[tuple[str, Fields]], requests: int, frontends: int,
              workers: int, front: tuple[str, ...], *, interpreter: str = sys.executable, real: bool = False,
              at_once: int = 1) -> bool:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "keys.toml").write_text(KEYS)
        async with Stack(place, {"DYN_LOG": "warn"}) as stack:
            fleet = Fleet(stack, workers, words, interpreter)
            await fleet.start()
            servers = []
            for _ in range(frontends):
                flags = ("--http-port", "0", "--migration-limit", "5", "--api-keys-file", str(place / "keys.toml"))
                process = await stack.python(*front, *flags, DYN_LOG="info")
                servers.append(Frontend(process, (await process.line("serving on ")).rpartition(" ")[2]))
            users, hostile = clients(servers, "other"), clients(servers, "killer")
            await all_serve(servers, workers)
            prompts = [f"The {number}th of many prompts: " + "word " * number for number in range(72 if real else 24)]
            if real:
                prompts = await clear_prompts(servers[0].url, prompts)
                print(f"{name}: {len(prompts)} prompts with a clear answer", flush=True)
            alone = {prompt: await complete(users[0], prompt=prompt, temperature=0) for prompt in prompts}
            outcome, done = Outcome(), asyncio.Event()
            others = asyncio.create_task(ask_others(users, alone, requests, outcome, done))
            costs: list[tuple[str, int]] = []
            again = 0
            for first in range(0, len(killers), at_once):
                some = killers[first : first + at_once]
                kind = ", ".join(sorted({kind for kind, _ in some}))
                await all_serve(servers, workers)
                before = fleet.lost
                for turn in range(2):
                    once = fleet.lost
                    sent = [
                        complete(hostile[(first + number + turn) % frontends], temperature=0, **fields)
                        for number, (_, fields) in enumerate(some)
                    ]
                    for ended in await asyncio.gather(*sent, return_exceptions=True):
                        if isinstance(ended, BaseException) and not isinstance(ended, openai.APIError):
                            raise ended
                    await asyncio.sleep(HANG_SECONDS + 2 if "hang" in kind else 0.5)
                again += fleet.lost - once
                costs.append((kind, fleet.lost - before))
                print(f"{first + len(some)} {kind}: {costs[-1][1]} lost, others {outcome.answered}", flush=True)
            done.set()
            await others
            fleet.stop()
            for each in (*users, *hostile):
                await each.close()
        total = fleet.lost
        deadly = sum(cost > 0 for _, cost in costs)
        most = max(cost for _, cost in costs)
        print(
            f"{name}: {len(killers)} killers, {at_once} at once, of which {deadly} ended a worker; {total} workers "
            f"lost, at most {most} at a time, {again} when sent again; the other key: {outcome.answered} "
            f"answered, {len(outcome.failed)} failed, {outcome.differ} differ, the longest {outcome.longest:.1f} s",
            flush=True,
        )
        for message in sorted(set(outcome.failed))[:5]:
            print("   failed:", message[:200])
        return not outcome.failed and not outcome.differ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--killers", type=int, default=70)
    parser.add_argument("--fields", type=int, default=30)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--frontends", type=int, default=2)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--engines", default="mistralrs,llamacpp")
    parser.add_argument("--vllm", metavar="PYTHON", help="the interpreter of tests/engines/install: vLLM is tried too")
    parser.add_argument("--at-once", type=int, default=1, help="killers that are sent together")
    given = parser.parse_args()
    os.environ.pop("DYN_LOG", None)
    good = True
    front = ("-m", "dynamo.frontend")
    if given.killers:
        killers = list(python_killers(given.killers))
        good &= asyncio.run(
            run(
                "engine in Python",
                (DEADLY,),
                killers,
                given.requests,
                given.frontends,
                given.workers,
                front,
                at_once=given.at_once,
            )
        )
    engines = [*filter(None, given.engines.split(",")), *(["vllm"] if given.vllm else [])] if given.fields else []
    for engine in engines:
        killers = list(field_killers(given.fields // len(engines)))
        words: tuple[str, ...] = (UNGUARDED, "dynamo.worker", engine, "tiny", "--migration-limit", "5")
        if engine == "vllm":
            words = (*words, "--max-model-len", "1024", "--kv-cache-memory-bytes", "64M")
        good &= asyncio.run(
            run(engine, words, killers, given.requests // 4, given.frontends, given.workers,
                (UNGUARDED, "dynamo.frontend"), real=True, at_once=given.at_once,
                interpreter=given.vllm if engine == "vllm" else sys.executable)
        )  # fmt: skip
    sys.exit(not good)


if __name__ == "__main__":
    main()
