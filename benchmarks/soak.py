"""Hours of everything at once at a low rate: what each process holds must not grow with what it has answered.

    python benchmarks/soak.py --minutes 120 --out table.tsv [--source FOLDER]

Two frontends (the second is killed now and then), a mocker that lasts and one that is killed, and llama.cpp with its
tiers. Three keys, two of them with limits, ask chats, completions, Messages, guided answers, named streams that change
the frontend, responses with a history, in the background and in conversations, files and batches; strangers and clients
that leave are among them. Each minute the memory, descriptors, threads and tasks of each process go into `--out`.
`--source` is another checkout whose `src` the processes run.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dynamo.runtime.inspection.place import inspection_folder, socket_path
from processes import Child, Stack, free_port
from support.stream_client import StreamClient

KEYS = """
[alice]
key = "alice"
requests_per_second = 20
tokens_per_second = 20000
concurrent = 8
[bob]
key = "bob"
weight = 2
[cara]
key = "cara"
concurrent = 2
"""
REPOSITORY = Path(__file__).parent.parent
WORDS = [f"word{number}" for number in range(400)]
FRONTEND = (
    "--router-mode", "kv", "--router-replica-sync", "--migration-limit", "5",
    "--router-session-affinity-ttl-secs", "300", "--stored-responses", "200", "--stored-files-mb", "1",
    "--http-batch-concurrency", "4",
)  # fmt: skip
MOCKER = ("--migration-limit", "5", "--num-gpu-blocks-override", "600", "--block-size", "16")


class Soak:
    def __init__(self, stack: Stack, folder: Path, seed: int) -> None:
        self.stack = stack
        self.folder = folder
        self.chance = random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.failed: list[str] = []
        self.ports = {"first": free_port(), "second": free_port()}
        self.down: dict[str, float] = {}
        self.http: aiohttp.ClientSession

    # processes

    def frontend(self, name: str) -> Child:
        words = (
            "--http-host",
            "127.0.0.1",
            "--http-port",
            str(self.ports[name]),
            "--api-keys-file",
            str(self.folder / "keys"),
        )
        return self.stack.start(
            name, "-m", "dynamo.frontend", *words, "--state-dir", str(self.folder / "state"), *FRONTEND
        )

    def worker(self, name: str) -> Child:
        if name == "llamacpp":
            tiers = (
                "--kv-offload-gb",
                "0.01",
                "--kv-offload-disk-gb",
                "0.02",
                "--kv-offload-dir",
                str(self.folder / "kv"),
            )
            command = ("-m", "dynamo.llama_cpp", "--model", "tiny", "--migration-limit", "5", "--n-ctx", "8192", *tiers)
            return self.stack.start(name, *command)
        return self.stack.start(name, "-m", "dynamo.mocker", "--model-path", "tiny", "--model-name", "mock", *MOCKER)

    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[self.chance.choice(['first', 'second'])]}"

    async def ready(self, name: str) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}"
        for _ in range(600):
            with suppress(aiohttp.ClientError, KeyError, ValueError):
                async with self.http.get(f"{url}/v1/models", headers=bearer("bob")) as answer:
                    if len((await answer.json())["data"]) == 2:
                        return
            await asyncio.sleep(0.5)
        raise SystemExit(f"{name} does not serve: {self.stack.children[name].output()}")

    async def kill(self, name: str) -> None:
        self.counts[f"kills of {name}"] += 1
        child = self.stack.children.pop(name)
        child.process.send_signal(signal.SIGKILL)
        self.down[name] = time.monotonic()
        child.process.wait()
        if name == "second":
            self.frontend(name)
            await self.ready(name)
        else:
            self.worker(name)
        self.down[name] = time.monotonic()

    # what is asked

    def key(self) -> str:
        return self.chance.choice(["alice", "bob", "bob", "cara"])

    def text(self, most: int = 120) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(3, most)))

    def model(self) -> str:
        return self.chance.choice(["mock", "mock", "tiny"])

    async def post(
        self, path: str, body: Any, key: str = "", *, leave: bool = False, url: str = "", **more: str
    ) -> Any:
        key = key or self.key()
        async with self.http.post((url or self.url()) + path, json=body, headers=bearer(key) | more) as answer:
            if leave:
                await answer.content.readany()
                self.counts["left"] += 1
                return None
            data = await answer.read()
            self.counts[f"{answer.status}"] += 1
            if answer.status in (429, 503):
                return None
            if answer.status != 200:
                raise RuntimeError(f"{path} {answer.status} {data[:300]!r} for {str(body)[:300]}")
            if b"event: error" in data or b'data: {"error"' in data:
                raise RuntimeError(f"{path}: {data[-500:]!r}")
            return data

    async def get(self, path: str, key: str) -> Any:
        async with self.http.get(self.url() + path, headers=bearer(key)) as answer:
            data = await answer.read()
            self.counts[f"{answer.status}"] += 1
            return json.loads(data) if answer.status == 200 else None

    async def chat(self) -> None:
        body: dict[str, Any] = {
            "model": self.model(), "stream": self.chance.random() < 0.8, "max_tokens": self.chance.randint(2, 30),
            "messages": [{"role": "system", "content": self.chance.choice(WORDS[:8]) * 40},
                         {"role": "user", "content": self.text()}],
        }  # fmt: skip
        if self.chance.random() < 0.2:
            body["n"] = 2
        more = {}
        if self.chance.random() < 0.6:
            new = self.chance.random() < 0.2
            more["X-Dynamo-Session-ID"] = f"s{self.chance.randrange(10**9 if new else 40)}"
        await self.post("/v1/chat/completions", body, leave=self.chance.random() < 0.1, **more)

    async def guided(self) -> None:
        field = self.chance.choice(WORDS)
        schema = {
            "type": "object",
            "properties": {field: {"enum": ["a", "b"]}},
            "required": [field],
            "additionalProperties": False,
        }
        body = {
            "model": "tiny", "max_tokens": 60, "temperature": 0,
            "messages": [{"role": "user", "content": self.text(20)}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        }  # fmt: skip
        await self.post("/v1/chat/completions", body)

    async def other(self) -> None:
        text = self.text()
        match self.chance.randrange(4):
            case 0:
                await self.post("/v1/completions", {"model": self.model(), "prompt": text, "max_tokens": 10})
            case 1:
                messages = [{"role": "user", "content": text}]
                await self.post(
                    "/v1/messages", {"model": self.model(), "messages": messages, "max_tokens": 12, "stream": True}
                )
            case 2:
                await self.post("/tokenize", {"model": "mock", "prompt": text})
            case _:
                await self.post(
                    "/v1/messages/count_tokens", {"model": "mock", "messages": [{"role": "user", "content": text}]}
                )

    async def named(self) -> None:
        body = {"model": self.model(), "max_tokens": 30, "messages": [{"role": "user", "content": self.text(40)}]}
        leaves = self.chance.random() < 0.5  # which ends the stream at its worker: only a POST begins it again
        client = StreamClient(self.http, "/v1/chat/completions", body, key="bob", how="post" if leaves else "get")
        urls = [f"http://127.0.0.1:{port}" for port in self.ports.values()]
        self.chance.shuffle(urls)
        if leaves:
            with suppress(aiohttp.ClientError, AssertionError):
                async with await client.open(urls[0]) as answer:
                    await client.read(answer, until=lambda: len(client.events) > 4)
                client.ended = False
        await client.whole(urls)
        self.counts["named"] += 1
        self.counts["reconnected"] += client.connections - 1

    async def responses(self) -> None:
        key, model = self.key(), self.model()
        body: dict[str, Any] = {"model": model, "input": self.text(30), "max_output_tokens": 8}
        kind = self.chance.randrange(4)
        if kind == 0:
            made = await self.post("/v1/conversations", {}, key)
            if made:
                body["conversation"] = json.loads(made)["id"]
        for turn in range(3):
            data = await self.post("/v1/responses", {**body, "background": kind == 1}, key)
            if not data:
                return
            answer = json.loads(data)
            while kind == 1 and answer["status"] in ("in_progress", "queued"):
                await asyncio.sleep(1)
                answer = await self.get(f"/v1/responses/{answer['id']}", key) or answer
                self.counts["polls"] += 1
            if kind != 0:
                body["previous_response_id"] = answer["id"]
            body["input"] = f"turn {turn} {self.text(10)}"
        self.counts["responses"] += 1

    async def batch(self) -> None:
        key = self.chance.choice(["alice", "bob"])
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
             "body": {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": self.text(20)}]}}
            for number in range(12)
        ]  # fmt: skip
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", "\n".join(map(json.dumps, lines)), filename="lines.jsonl")
        async with self.http.post(self.url() + "/v1/files", data=form, headers=bearer(key)) as answer:
            file = await answer.json()
        made = await self.post(
            "/v1/batches",
            {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"},
            key,
        )
        if not made:
            return
        batch = json.loads(made)
        for _ in range(60):
            await asyncio.sleep(3)
            with suppress(aiohttp.ClientError):
                batch = await self.get(f"/v1/batches/{batch['id']}", key) or batch
            if batch["status"] in ("completed", "failed", "expired"):
                break
        self.counts[f"batch {batch['status']}"] += 1
        if batch["status"] != "completed" or batch["request_counts"]["failed"]:
            raise RuntimeError(f"batch {batch}")

    async def stranger(self) -> None:
        async def stated(answer: aiohttp.ClientResponse) -> None:
            await answer.read()
            self.counts[f"stranger {answer.status}"] += 1

        match self.chance.randrange(4):
            case 0:
                async with self.http.post(self.url() + "/v1/chat/completions", json={}, headers=bearer("no")) as answer:
                    await stated(answer)
            case 1:
                async with self.http.post(
                    self.url() + "/v1/chat/completions", data=b'{"model": [', headers=bearer("bob")
                ) as answer:
                    await stated(answer)
            case 2:
                async with self.http.get(self.url() + "/v1/responses/resp_none", headers=bearer("bob")) as answer:
                    await stated(answer)
            case _:
                _, writer = await asyncio.open_connection("127.0.0.1", self.ports["first"])
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer bob\r\n"
                    b"Content-Length: 100\r\n\r\n{"
                )
                await writer.drain()
                writer.close()
                self.counts["stranger cut"] += 1

    async def look(self) -> None:
        for path in ("/metrics", "/health"):
            async with self.http.get(self.url() + path, headers=bearer("bob")) as answer:
                await answer.read()

    async def keep(self, what: Callable[[], Awaitable[None]], pause: float) -> None:
        running: set[asyncio.Task[None]] = set()

        async def once() -> None:
            begun = time.monotonic()
            try:
                await what()
            except (aiohttp.ClientError, OSError, RuntimeError, AssertionError, ValueError, KeyError) as error:
                if any(at > begun - 2 for at in self.down.values()):
                    self.counts["cut by a kill"] += 1
                else:
                    self.counts["failed"] += 1
                    self.failed.append(f"{what.__name__} {error!r}"[:600])
                    print(f"failed: {self.failed[-1]}", flush=True)

        while True:
            await asyncio.sleep(self.chance.expovariate(1 / pause))
            if len(running) < 30:
                task = asyncio.create_task(once())
                running.add(task)
                task.add_done_callback(running.discard)

    async def keep_killing(self, name: str, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            await self.kill(name)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def tasks_of(pid: int) -> int:
    """How many tasks the event loop of a process has, as `dynamo inspect` counts them; -1 if it does not say."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(socket_path(inspection_folder(os.environ), pid)))
        connection.sendall(b'{"tables": ["tasks"], "most": 100000}\n')
        with connection.makefile("rb") as lines:
            for line in lines:
                part = json.loads(line)
                if part.get("kind") == "table":
                    return int(part.get("total", -1))
    return -1


def held(child: Child) -> tuple[float, int, int, int, float]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
    descriptors = len(os.listdir(f"/proc/{child.pid}/fd"))
    return int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]), tasks_of(child.pid), child.cpu()


async def run(
    soak: Soak, minutes: float, out: Path, rate: float
) -> dict[str, list[tuple[float, int, int, int, float]]]:
    rows: dict[str, list[tuple[float, int, int, int, float]]] = collections.defaultdict(list)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        soak.http = http
        for name in ("mocker", "killed mocker", "llamacpp"):
            soak.worker(name)
        for name in ("first", "second"):
            soak.frontend(name)
        for name in ("first", "second"):
            await soak.ready(name)
        doing = [
            asyncio.create_task(each)
            for each in (
                soak.keep(soak.chat, 1 / rate), soak.keep(soak.guided, 8 / rate), soak.keep(soak.other, 3 / rate),
                soak.keep(soak.named, 5 / rate), soak.keep(soak.responses, 10 / rate), soak.keep(soak.batch, 60 / rate),
                soak.keep(soak.stranger, 5 / rate), soak.keep(soak.look, 15), soak.keep_killing("killed mocker", 150),
                soak.keep_killing("second", 600),
            )
        ]  # fmt: skip
        begun = time.monotonic()
        with out.open("w") as file:
            print("minute\tprocess\tpid\tMB\tdescriptors\tthreads\ttasks\tCPU s", file=file, flush=True)
            for minute in range(int(minutes) + 1):
                await asyncio.sleep(max(0, begun + 60 * minute - time.monotonic()))
                for task in doing:
                    if task.done():
                        task.result()
                for name, child in list(soak.stack.children.items()):
                    with suppress(OSError):
                        row = await asyncio.to_thread(held, child)
                        rows[name].append(row)
                        print(
                            minute,
                            name,
                            child.pid,
                            *(f"{each:.1f}" if isinstance(each, float) else each for each in row),
                            sep="\t",
                            file=file,
                            flush=True,
                        )
                mine = time.process_time()
                print(f"minute {minute}: own CPU {mine:.0f} s, {dict(sorted(soak.counts.items()))}", flush=True)
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=float, default=1.0, help="chats per second; the rest in proportion")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("soak.tsv"))
    parser.add_argument("--source", type=Path, default=REPOSITORY)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        place = Path(folder)
        (place / "keys").write_text(KEYS)
        environ = {"PYTHONPATH": str(arguments.source / "src"), "RAYON_NUM_THREADS": "1"}
        with Stack(place, environ=environ) as stack:
            soak = Soak(stack, place, arguments.seed)
            rows = asyncio.run(run(soak, arguments.minutes, arguments.out, arguments.rate))
    print("\n| process | | first third | second third | last third |\n|---|---|---|---|---|")
    for name, samples in rows.items():
        third = max(1, len(samples) // 3)
        parts = [samples[:third], samples[third : 2 * third], samples[2 * third :] or samples[-1:]]
        for column, unit in enumerate(("MB", "descriptors", "threads", "tasks")):
            cells = [
                f"{statistics.median(row[column] for row in part):.4g} (≤ {max(row[column] for row in part):.4g})"
                for part in parts
            ]
            print(f"| {name} | {unit} | " + " | ".join(cells) + " |")
    print(f"\n{dict(sorted(soak.counts.items()))}\nfailed: {len(soak.failed)}")
    for line in soak.failed[:20]:
        print(line)


if __name__ == "__main__":
    main()
