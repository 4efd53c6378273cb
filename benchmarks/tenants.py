"""Two keys of one server, one of them hostile: what the other waits, whether its data is there, its answers the same.

    python benchmarks/tenants.py [--engine mocker|llamacpp] [--only NAME …] [--asks 40] [--speedup 0.1]

Each attack meets a fleet of its own: a frontend with default limits but for the space of files, and two workers. The
other key first stores a response, a conversation, a file and a batch. Then it asks one thing at a time, with random
pauses, alone and beside the attack, which runs in a process of its own that gives way (nice 10). At the end all it
stored is read again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from figures import table
from processes import Stack

MODEL = "tiny"
KEYS = '[hostile]\nkey = "hostile"\n[other]\nkey = "other"\n'
FILES_MB = 64
WORDS = [f"word{number}" for number in range(500)]
Attack = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def many(count: int, what: Callable[[int], Awaitable[None]]) -> None:
    """Keeps this number of tasks going until the process is killed."""

    async def again(number: int) -> None:
        while True:
            try:
                await what(number)
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.05)

    await asyncio.gather(*(again(number) for number in range(count)))


async def send(http: aiohttp.ClientSession, url: str, path: str, **more: Any) -> int:
    async with http.post(url + path, headers=bearer("hostile"), **more) as answer:
        await answer.read()
        if answer.status in (429, 503):
            await asyncio.sleep(0.02)
        return answer.status


def prompt(words: int) -> str:
    return " ".join(random.choices(WORDS, k=words))


async def memory(http: aiohttp.ClientSession, url: str) -> None:
    """24 bodies of 40 MB that arrive slowly."""

    async def slow(_: int) -> None:
        async def body() -> Any:
            for _ in range(40):
                yield b" " * 1_000_000
                await asyncio.sleep(0.1)

        await send(http, url, "/v1/chat/completions", data=body())

    await many(24, slow)


async def disk(http: aiohttp.ClientSession, url: str) -> None:
    """Files of 8 MB, one after another."""

    async def upload(number: int) -> None:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", os.urandom(8_000_000), filename=f"{number}.jsonl")
        await send(http, url, "/v1/files", data=form)
        await asyncio.sleep(0.2)

    await many(2, upload)


async def loop_time(http: aiohttp.ClientSession, url: str) -> None:
    """Bodies that are costly to read: 400,000 token ids, 60,000 fields, deep schemas."""
    ids = {"model": MODEL, "prompt": list(range(400_000)), "max_tokens": 1}
    fields = {"model": MODEL, "messages": [], "metadata": {str(number): number for number in range(60_000)}}
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": deep}} for number in range(100)]
    asked = [{"role": "user", "content": "hi"}]
    bodies = [json.dumps(each).encode() for each in (ids, fields, {"model": MODEL, "messages": asked, "tools": tools})]

    async def ask(number: int) -> None:
        kind = {**bearer("hostile"), "Content-Type": "application/json"}
        path = "/v1/completions" if number % 3 == 0 else "/v1/chat/completions"
        async with http.post(url + path, data=bodies[number % 3], headers=kind) as answer:
            await answer.read()

    await many(3, ask)


async def prompts(http: aiohttp.ClientSession, url: str) -> None:
    """200 at a time of some 300 new tokens, short answers."""
    await many(200, lambda _: _completion(http, url, 100, 16))


async def answers(http: aiohttp.ClientSession, url: str) -> None:
    """200 at a time with answers of 800 tokens."""
    await many(200, lambda _: _completion(http, url, 4, 800))


async def cache(http: aiohttp.ClientSession, url: str) -> None:
    """Prompts of some 1,500 new tokens, 8 at a time, more than the cache can hold."""
    await many(8, lambda _: _completion(http, url, 500, 1))


async def batches(http: aiohttp.ClientSession, url: str) -> None:
    """20 batches of 200 lines at a time."""

    async def batch(_: int) -> None:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/completions",
             "body": {"model": MODEL, "prompt": prompt(60), "max_tokens": 60}}
            for number in range(200)
        ]  # fmt: skip
        form.add_field("file", "\n".join(map(json.dumps, lines)), filename="lines.jsonl")
        async with http.post(f"{url}/v1/files", data=form, headers=bearer("hostile")) as answer:
            file = (await answer.json())["id"]
        asked = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        await send(http, url, "/v1/batches", json=asked)
        await asyncio.sleep(5)

    await many(20, batch)


async def objects(http: aiohttp.ClientSession, url: str) -> None:
    """Conversations and responses, as fast as they are stored."""

    async def store(number: int) -> None:
        if number % 2:
            items = [{"type": "message", "role": "user", "content": "x" * 20_000}]
            await send(http, url, "/v1/conversations", json={"items": items})
        else:
            body = {"model": MODEL, "input": "x " * 10, "max_output_tokens": 1}
            await send(http, url, "/v1/responses", json=body)

    await many(6, store)


async def descriptors(http: aiohttp.ClientSession, url: str) -> None:
    """2,000 connections that stay open; the frontend may have 1,024 files."""
    host, port = url.removeprefix("http://").split(":")
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer hostile\r\n\r\n"

    async def hold(_: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        while await reader.read(65536):
            pass
        writer.close()
        await asyncio.sleep(0.5)

    await many(2000, hold)


async def _completion(http: aiohttp.ClientSession, url: str, words: int, most: int) -> None:
    body = {"model": MODEL, "prompt": prompt(words), "max_tokens": most, "ignore_eos": True, "stream": True}
    await send(http, url, "/v1/completions", json=body)


ATTACKS: dict[str, Attack] = {
    "memory": memory, "disk": disk, "loop time": loop_time, "prompt flood": prompts, "answer flood": answers,
    "batches": batches, "cache": cache, "stored objects": objects, "descriptors": descriptors,
}  # fmt: skip


class Other:
    """The key that is attacked."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.ttft: list[float] = []
        self.failed: list[str] = []
        self.stored: dict[str, Any] = {}
        self._http = http
        self._url = url
        self._pauses = random.Random(7)

    async def ask(self, number: int) -> str:
        body = {
            "model": MODEL,
            "stream": True,
            "max_tokens": 12,
            "temperature": 0,
            "prompt": f"{number} " + "fox " * 30,
        }
        begun, text = time.perf_counter(), ""
        async with self._http.post(f"{self._url}/v1/completions", json=body, headers=bearer("other")) as answer:
            if answer.status != 200:
                self.failed.append(f"{answer.status} {(await answer.text())[:200]}")
                return ""
            first = await answer.content.readline()
            self.ttft.append((time.perf_counter() - begun) * 1e3)
            for line in (first, *(await answer.read()).splitlines()):
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += choices[0]["text"] if choices else ""
        return text

    async def asks(self, count: int) -> list[str]:
        self.ttft = []
        found = []
        for number in range(count):
            try:
                found.append(await self.ask(number))
            except (aiohttp.ClientError, OSError) as error:
                self.failed.append(repr(error))
                found.append("")
            await asyncio.sleep(self._pauses.uniform(0, 0.4))
        return found

    async def _json(self, path: str, **more: Any) -> Any:
        way = self._http.post if more else self._http.get
        async with way(self._url + path, headers=bearer("other"), **more) as answer:
            data = await answer.read()
            if answer.status != 200:
                raise LookupError(f"{path}: {answer.status} {data[:200]!r}")
            return data if path.endswith("/content") else json.loads(data)

    async def store(self) -> None:
        asked = {"model": MODEL, "input": "remember this", "max_output_tokens": 4, "temperature": 0}
        response = await self._json("/v1/responses", json=asked)
        items = [{"type": "message", "role": "user", "content": "mine"}]
        conversation = await self._json("/v1/conversations", json={"items": items})
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
                "body": {"model": MODEL, "prompt": "a line", "max_tokens": 3}}  # fmt: skip
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", json.dumps(line), filename="mine.jsonl")
        file = await self._json("/v1/files", data=form)
        asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = await self._json("/v1/batches", json=asked)
        while batch["status"] != "completed":
            await asyncio.sleep(0.1)
            batch = await self._json(f"/v1/batches/{batch['id']}")
        paths = [
            f"/v1/responses/{response['id']}", f"/v1/conversations/{conversation['id']}/items",
            f"/v1/files/{file['id']}/content", f"/v1/batches/{batch['id']}",
            f"/v1/files/{batch['output_file_id']}/content",
        ]  # fmt: skip
        self.stored = {path: await self._json(path) for path in paths}

    async def lost(self) -> list[str]:
        found = []
        for path, before in self.stored.items():
            try:
                if await self._json(path) != before:
                    found.append(f"{path} has changed")
            except LookupError as error:
                found.append(str(error))
        return found


def start(place: Path, engine: str, speedup: str, attack: str) -> Stack:
    (place / "keys").write_text(KEYS)
    stack = Stack(place, environ={"RAYON_NUM_THREADS": "1"})
    for number in range(2):
        if engine == "llamacpp":
            stack.start(f"worker {number}", "-m", "dynamo.llama_cpp", "--model", "tiny", "--model-name", MODEL)
        else:
            stack.start(
                f"worker {number}", "-m", "dynamo.mocker", "--model-path", "tiny", "--model-name", MODEL,
                "--max-num-seqs", "16", "--speedup-ratio", speedup, "--block-size", "16",
                "--num-gpu-blocks-override", "2048",
            )  # fmt: skip
    if attack == "descriptors":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
        stack.environ["DYN_FRONTEND_FD_LIMIT_TARGET"] = "0"
    stack.frontend(
        "--api-keys-file", str(place / "keys"), "--state-dir", str(place / "state"), "--stored-files-mb", str(FILES_MB)
    )
    if attack == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return stack


async def measure(stack: Stack, attack: str, asks: int) -> tuple[Any, ...]:
    connector = aiohttp.TCPConnector(limit=0, force_close=attack == "descriptors")
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
        url = stack.url
        for _ in range(1200):
            with suppress(aiohttp.ClientError):
                async with http.get(f"{url}/health", headers=bearer("other")) as answer:
                    known = json.loads(await answer.read()).get("instances", [])
                    if len({each["instance_id"] for each in known if each["endpoint"] == "generate"}) == 2:
                        break
            await asyncio.sleep(0.1)
        else:
            raise SystemExit(stack.children["frontend"].output())
        other = Other(http, url)
        await other.store()
        await other.asks(4)
        expected = await other.asks(asks)
        alone = sorted(other.ttft)
        command = [sys.executable, __file__, "--attack", attack, "--url", url]
        attacker = await asyncio.create_subprocess_exec("nice", "-n", "10", *command)
        try:
            await asyncio.sleep(6)
            got = await other.asks(asks)
        finally:
            attacker.kill()
            await attacker.wait()
        beside = sorted(other.ttft)
        lost = await other.lost()
    different = sum(one != another for one, another in zip(expected, got, strict=True))
    for line in (*other.failed[:3], *lost):
        print(f"{attack}: {line}", flush=True)

    def at(values: list[float], share: float) -> float:
        return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")

    return (
        attack, f"{at(alone, 0.5):.0f} / {at(alone, 0.99):.0f}", f"{at(beside, 0.5):.0f} / {at(beside, 0.99):.0f}",
        f"{at(beside, 0.5) / at(alone, 0.5):.2f}", str(len(other.failed)), str(different), str(len(lost)),
        f"{stack.children['frontend'].rss() / 1e6:.0f}",
    )  # fmt: skip


async def attacking(name: str, url: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await ATTACKS[name](http, url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="mocker", choices=["mocker", "llamacpp"])
    parser.add_argument("--only", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--asks", type=int, default=40)
    parser.add_argument("--speedup", default="0.1", help="of the mockers: below 1 is slower than a GPU")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        asyncio.run(attacking(given.attack, given.url))
        return
    rows = []
    for attack in given.only:
        with tempfile.TemporaryDirectory() as folder, start(Path(folder), given.engine, given.speedup, attack) as stack:
            rows.append(asyncio.run(measure(stack, attack, given.asks)))
            print(rows[-1], flush=True)
    heads = ("attack", "TTFT p50 / p99 alone, ms", "beside", "times", "failed", "different", "lost", "frontend, MB")
    print(table(heads, rows))


if __name__ == "__main__":
    main()
