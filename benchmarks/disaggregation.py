"""Split requests at length, with real processes: are answers the same, does anything stay behind, does anyone notice?

python benchmarks/disaggregation.py identical [--requests 500] [--networks file+tcp,etcd+tcp,file+nats,etcd+nats]
                                    [--at-once 8 | --empty]      llama.cpp, 2 prefill + 2 decode, against one worker
python benchmarks/disaggregation.py batching [--requests 150]    the same with continuous batching, and the control:
                                                                 one worker asked 8 at a time against one at a time
python benchmarks/disaggregation.py cancel [--requests 1000] [--engine llamacpp]
                                                                 clients that leave at random moments of an answer
python benchmarks/disaggregation.py kill [--requests 2000]       mockers, of which one is killed every second
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from networks import networks

SOURCE = Path(__file__).parents[1] / "src"
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on old roofs in the town by the sea".split()  # noqa: SIM905
ALWAYS = ("--router-conditional-disagg-config", '{"policy": "always"}')


class Processes:
    """Children on one discovery folder; all end with the block."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self._env = {
            **os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1", "DYN_FILE_KV": str(folder),
            "DYN_TCP_RPC_HOST": "127.0.0.1", "HF_HUB_OFFLINE": "1", "DYN_LOG": "warn",
            **environ,
        }  # fmt: skip
        self._all: list[asyncio.subprocess.Process] = []
        self._reading: list[asyncio.Task[None]] = []

    async def start(self, *words: str, until: str, **env: str) -> tuple[asyncio.subprocess.Process, str]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *words, env={**self._env, **env},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=1 << 20,
        )  # fmt: skip
        self._all.append(child)
        assert child.stdout
        seen = []
        async for raw in child.stdout:
            line = raw.decode(errors="replace").rstrip()
            seen.append(line)
            if until in line:
                self._reading.append(asyncio.create_task(_drain(child.stdout, self._log(seen, child.pid))))
                return child, line
        raise SystemExit("\n".join(seen))

    async def frontend(self, *flags: str) -> str:
        _, line = await self.start("dynamo.frontend", "--http-port", "0", *flags, until="serving on ")
        return line.rpartition(" ")[2]

    def _log(self, seen: list[str], pid: int) -> Path | None:
        """What a child has said is kept where `$OUT` names a folder."""
        if (out := os.environ.get("OUT")) is None:
            return None
        log = Path(out) / f"{pid}.log"
        log.write_text("\n".join([*seen, ""]))
        return log

    async def close(self) -> None:
        for child in self._all:
            if child.returncode is None:
                child.kill()
        await asyncio.gather(*(child.wait() for child in self._all), *self._reading)


async def _drain(stream: asyncio.StreamReader, log: Path | None) -> None:
    while said := await stream.read(1 << 16):
        if log is not None:
            with log.open("ab") as file:
                file.write(said)


class Clients:
    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._http = http

    async def until_served(self, model: str) -> None:
        while True:
            async with self._http.get(f"{self.url}/v1/models") as answer:
                if any(each["id"] == model for each in (await answer.json())["data"]):
                    return
            await asyncio.sleep(0.1)

    async def ask(self, model: str, prompt: str | list[int], tokens: int, **more: Any) -> dict[str, Any]:
        body = {
            "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "nvext": {"extra_fields": ["routing"]}, **more,
        }  # fmt: skip
        async with self._http.post(f"{self.url}/v1/completions", json=body) as answer:
            told: dict[str, Any] = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {told}")
            return told

    async def cleared(self) -> int:
        """How many workers had no block in use, so that their whole cache could be cleared."""
        async with self._http.post(f"{self.url}/clear_kv_blocks") as answer:
            return len((await answer.json())["cleared_workers"])

    async def metrics(self, url: str, pattern: str) -> list[float]:
        async with self._http.get(f"{url}/metrics") as answer:
            text = await answer.text()
        return [
            float(line.rpartition(" ")[2]) for line in text.splitlines() if re.search(pattern, line) and line[0] != "#"
        ]


def prompts(count: int, most: int, seed: int = 1) -> list[str]:
    chance = random.Random(seed)
    return [f"{n} " + " ".join(chance.choices(WORDS, k=chance.choice((1, most // 8, most)))) for n in range(count)]


def prefilled(answer: dict[str, Any]) -> str:
    notes = answer["nvext"]["routing"][0].get("prefill") or {}
    return f"{'remote' if notes.get('remote') else 'local'} {notes.get('reason')}"


async def gathered(limit: int, work: list[Any]) -> list[Any]:
    gate = asyncio.Semaphore(limit)

    async def one(each: Any) -> Any:
        async with gate:
            return await each

    return await asyncio.gather(*(one(each) for each in work))


def mixed(count: int) -> list[tuple[str, int]]:
    """Prompts and lengths of answers."""
    return [(text, random.Random(n).choice((1, 8, 24))) for n, text in enumerate(prompts(count, 200))]


async def llama_workers(processes: Processes, name: str, *flags: str, split: bool) -> None:
    words = ("dynamo.llama_cpp", "tiny", "--n-threads", "1", "--model-name", name, *flags)
    for mode in ("prefill", "prefill", "decode", "decode") if split else ("agg",):
        await processes.start(*words, "--disaggregation-mode", mode, until="worker for")


async def identical(
    processes: Processes, http: aiohttp.ClientSession, count: int, at_once: int, *, empty: bool
) -> None:
    """One sequence per step, and the one worker has its prompts cached, so that all compute in the same portions.

    With `empty` caches before each request, they also compute in the same cells: where else a sequence lies in the
    cache changes the last bits of its sums.
    """
    await llama_workers(processes, "split", "--max-num-seqs", "1", split=True)
    await llama_workers(processes, "whole", "--max-num-seqs", "1", split=False)
    clients = Clients(await processes.frontend(*ALWAYS, "--router-mode", "kv"), http)
    for name in ("split", "whole"):
        await clients.until_served(name)

    async def ask(name: str, text: str, tokens: int) -> dict[str, Any]:
        if empty and await clients.cleared() < 5:
            raise SystemExit("blocks are in use between two requests")
        if name == "whole":
            await clients.ask(name, text, 1)
        return await clients.ask(name, text, tokens, logprobs=2)

    split = await gathered(1 if empty else at_once, [ask("split", *each) for each in mixed(count)])
    whole = await gathered(1, [ask("whole", *each) for each in mixed(count)])
    print(f"{compared(split, whole)}; {dict(Counter(map(prefilled, split)))}", flush=True)


async def batching(processes: Processes, http: aiohttp.ClientSession, count: int) -> None:
    """How answers are batched changes the last bits of probabilities: how often does that alone change an answer?"""
    for name in ("one at a time", "plain, 8 at a time", "split, 8 at a time"):
        await llama_workers(processes, name, split=name.startswith("split"))
    clients = Clients(await processes.frontend(*ALWAYS, "--router-mode", "kv"), http)
    answers = {}
    for name, limit in (("one at a time", 1), ("plain, 8 at a time", 8), ("split, 8 at a time", 8)):
        await clients.until_served(name)
        asked = [clients.ask(name, text, tokens, logprobs=2) for text, tokens in mixed(count)]
        answers[name] = await gathered(limit, asked)
        print(f"{name}: {compared(answers[name], answers['one at a time'])}", flush=True)


def compared(answers: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """How many are identical; where two part, by how much the first choice led there in either answer."""
    leads, noise = [], 0.0
    for one, two in zip(answers, others, strict=True):
        here, there = (answer["choices"][0]["logprobs"] for answer in (one, two))
        for at, (token, other) in enumerate(zip(here["tokens"], there["tokens"], strict=True)):
            if token != other:
                leads.append(" and ".join(f"{lead(each['top_logprobs'][at]):.4f}" for each in (here, there)))
                break
            noise = max(noise, abs(here["token_logprobs"][at] - there["token_logprobs"][at]))
    same = f"{len(answers) - len(leads)} of {len(answers)} answers identical"
    text = f"{same}, log probabilities differ by up to {noise:.4f}"
    return text + (f"; where answers part, the first choice led by {', '.join(leads)}" if leads else "")


def lead(choices: dict[str, float]) -> float:
    first, *others = sorted(choices.values(), reverse=True)
    return first - others[0] if others else 0.0  # two tokens of the same text


async def cancel(processes: Processes, http: aiohttp.ClientSession, count: int, engine: str = "mocker") -> None:
    status = []
    for number, mode in enumerate(("prefill", "decode")):
        port = str(random.randrange(20000, 30000) + number)
        status.append(f"http://127.0.0.1:{port}")
        if engine == "mocker":
            await mocker(processes, mode, "--speedup-ratio", "20", DYN_SYSTEM_PORT=port)
        else:
            words = ("tiny", "--n-threads", "1", "--model-name", "m", "--disaggregation-mode", mode)
            await processes.start("dynamo.llama_cpp", *words, until="worker for", DYN_SYSTEM_PORT=port)
    clients = Clients(await processes.frontend(*ALWAYS), http)
    await clients.until_served("m")
    chance = random.Random(3)
    began = time.perf_counter()
    await gathered(16, [clients.ask("m", text, 30) for text in prompts(32, 300, seed=2)])
    whole = (time.perf_counter() - began) / 2

    async def leaves(text: str) -> str:
        try:
            async with asyncio.timeout(chance.uniform(0, whole)):
                return prefilled(await clients.ask("m", text, 30))
        except TimeoutError:
            return "left"

    outcomes = Counter(await gathered(16, [leaves(text) for text in prompts(count, 300)]))
    began = time.perf_counter()
    while any(await clients.metrics(status[0], "handoff_(open_records|held_blocks|leaked_blocks)")):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    while await clients.cleared() < len(status):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    print(f"{dict(outcomes)}; no record, no block in use {time.perf_counter() - began:.2f} s after the last one left")
    for name in ("taken", "given_back", "expired"):
        print(f"  {name}: {await clients.metrics(status[0], f'handoff_records_total.*{name}')}")
    print(f"  takes: {await clients.metrics(status[1], 'handoff_takes_total')}")
    answer = await clients.ask("m", "after all " * 40, 8)
    print(f"  and then: {prefilled(answer)}")


async def kill(processes: Processes, http: aiohttp.ClientSession, count: int) -> None:
    roles = ["prefill", "prefill", "decode", "decode", "decode"]
    workers = [(mode, await mocker(processes, mode)) for mode in roles]
    clients = Clients(await processes.frontend(*ALWAYS, "--migration-limit", "10"), http)
    await clients.until_served("m")
    chance, killed = random.Random(5), Counter[str]()

    async def killing() -> None:
        while True:
            await asyncio.sleep(1.0)
            at = chance.randrange(len(workers))
            mode, child = workers[at]
            child.send_signal(signal.SIGTERM if chance.random() < 0.3 else signal.SIGKILL)
            killed[mode] += 1
            workers[at] = mode, await mocker(processes, mode)

    task = asyncio.create_task(killing())
    answers = await gathered(16, [clients.ask("m", text, 20) for text in prompts(count, 300)])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    complete = sum(answer["usage"]["completion_tokens"] == 20 for answer in answers)
    print(f"{complete} of {count} complete; killed {dict(killed)}; {dict(Counter(map(prefilled, answers)))}")


async def mocker(processes: Processes, mode: str, *more: str, **env: str) -> asyncio.subprocess.Process:
    flags = ("--model-path", "tiny", "--model-name", "m", "--block-size", "16", "--disaggregation-mode", mode)
    child, _ = await processes.start("dynamo.mocker", *flags, *more, until="serves 'm'", **env)
    return child


SHOWS: dict[str, tuple[Any, int]] = {
    "identical": (identical, 500), "batching": (batching, 150), "cancel": (cancel, 1000), "kill": (kill, 2000),
}  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("show", choices=SHOWS)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--engine", choices=("mocker", "llamacpp"), default="mocker", help="of cancel")
    parser.add_argument("--at-once", type=int, default=8, help="requests of identical at a time")
    parser.add_argument("--empty", action="store_true", help="identical, one at a time, with empty caches before each")
    parser.add_argument("--networks", default="file+tcp", help="how processes reach each other, one run each")
    asked = parser.parse_args()
    show, count = SHOWS[asked.show]
    names = asked.networks.split(",")
    with tempfile.TemporaryDirectory() as folder, networks(Path(folder), *names) as found:
        for network in found:
            if len(found) > 1:
                print(f"{network.name}: ", end="", flush=True)
            async with AsyncExitStack() as stack:
                processes = Processes(Path(folder) / network.name, **network.environ)
                stack.push_async_callback(processes.close)
                http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
                requests = (asked.requests or count) // len(found)
                if show is cancel:
                    await cancel(processes, http, requests, asked.engine)
                elif show is identical:
                    await identical(processes, http, requests, asked.at_once, empty=asked.empty)
                else:
                    await show(processes, http, requests)


if __name__ == "__main__":
    asyncio.run(main())
