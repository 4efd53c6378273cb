"""Real processes for system tests: workers and frontends, watched by what they print."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from support.leftovers import descendants
from support.services import Etcd, Nats
from support.waiting import PATIENCE, until

SOURCE = Path(__file__).parents[2] / "src"
TOY = str(Path(__file__).with_name("toy_worker.py"))


def environ_of(network: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """What the environment must say for this network.

    Every stack has servers of its own: the leases of killed workers outlive their test.
    """
    environ = {"DYN_TCP_RPC_HOST": "127.0.0.1"}
    if "etcd" in network:
        etcd: Etcd = request.getfixturevalue("etcd")
        environ["ETCD_ENDPOINTS"] = etcd.url
    if "nats" in network:
        nats: Nats = request.getfixturevalue("nats")
        environ |= {"NATS_SERVER": nats.url, "DYN_REQUEST_PLANE": "nats"}
    return environ


SERVING_ENDPOINTS = ("generate", "endpoint")
"""Where the workers of system tests take requests, their own and those of the guides."""


class Process:
    """A child whose output lines can be waited for, in any order and also after they were printed."""

    def __init__(self, name: str, child: asyncio.subprocess.Process) -> None:
        self.name = name
        self.child = child
        self.lines: list[str] = []
        self._arrived = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stdout
        async for line in self.child.stdout:
            async with self._arrived:
                self.lines.append(line.decode(errors="replace").rstrip())
                self._arrived.notify_all()
        async with self._arrived:
            self.lines.append("(end of output)")
            self._arrived.notify_all()

    async def line(self, text: str, *, after: int = 0) -> str:
        """The first line (from number `after` on) that contains `text`."""
        try:
            async with asyncio.timeout(PATIENCE), self._arrived:
                while True:
                    for line in self.lines[after:]:
                        if text in line:
                            return line
                    if self.lines and self.lines[-1] == "(end of output)":
                        raise AssertionError(f"{self.name} ended without saying {text!r}:\n{self.output}")
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name} never said {text!r}:\n{self.output}") from None

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            await self._reader
            return await self.child.wait()


class Stack:
    """The processes of one test; leaving it ends them all."""

    def __init__(self, folder: Path, environ: dict[str, str], *paths: Path) -> None:
        """`paths` are more folders of modules."""
        self._environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("DYN_", "ETCD_", "NATS_"))},
            "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, *paths))),
            "PYTHONUNBUFFERED": "1",
            "DYN_FILE_KV": str(folder / "discovery"),
            "HF_HUB_OFFLINE": "1",
            **environ,
        }
        self.processes: list[Process] = []
        self._clients: list[openai.AsyncOpenAI] = []

    async def __aenter__(self) -> Stack:
        return self

    async def __aexit__(self, *_: Any) -> None:
        for client in self._clients:
            await client.close()
        for process in self.processes:
            if process.child.returncode is None:
                # What a supervisor started outlives it.
                started = descendants(process.child.pid)
                process.child.kill()
                for pid in started:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            await process.ended()

    async def python(self, *words: str, interpreter: str = sys.executable, **environ: str) -> Process:
        child = await asyncio.create_subprocess_exec(
            interpreter,
            *words,
            env={**self._environ, **environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )
        process = Process(" ".join(words), child)
        self.processes.append(process)
        return process

    async def frontend(self, *flags: str, **environ: str) -> Frontend:
        process = await self.python("-m", "dynamo.frontend", "--http-port", "0", *flags, **environ)
        line = await process.line("serving on ")
        frontend = Frontend(process, line.rpartition(" ")[2])
        self._clients.append(frontend.client)
        return frontend


class Frontend:
    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    async def models(self) -> list[str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/v1/models") as answer:
            return [model["id"] for model in (await answer.json())["data"]]

    async def until_models(self, *names: str) -> None:
        """Wait until exactly these models are served."""

        async def served() -> bool:
            return sorted(await self.models()) == sorted(names)

        await until(served)

    async def until_draining(self) -> None:
        """Wait until the frontend takes no more requests."""

        async def draining() -> bool:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as answer:
                return answer.status == 503

        await until(draining)

    async def instances(self) -> list[int]:
        """The workers the frontend can send requests to; one that has only registered an auxiliary endpoint is none."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as answer:
            known = (await answer.json())["instances"]
        return sorted({one["instance_id"] for one in known if one["endpoint"] in SERVING_ENDPOINTS})

    async def until_instances(self, count: int) -> None:
        """Wait until the frontend knows this many workers."""

        async def known() -> bool:
            return len(await self.instances()) == count

        await until(known)


async def ask(frontend: Frontend, text: str) -> str:
    """What the toy worker answers."""
    answer = await frontend.client.chat.completions.create(model="toy", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""
