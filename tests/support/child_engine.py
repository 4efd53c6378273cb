"""An engine in a process of its own, whose death and other troubles tests choose by its flags."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry, Counter

from dynamo.protocols.errors import InvalidArgument
from dynamo.worker import EngineEntry, EngineError, EngineInfo, EngineSpec, ModelInput, Running, Sink

ENTRY = EngineEntry(name="child", factory="child_engine:ChildEngine", weights=True, bundled=True)

# Its own child ignores SIGTERM and outlives it, as a stuck process of an engine would.
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(3600)"
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
child.wait()
"""


class Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise EngineError(f"child: {message}")


class Stream(Running):
    def __init__(self, engine: ChildEngine, sink: Sink) -> None:
        self._engine = engine
        self.sink = sink

    def abort(self) -> None:
        if self in self._engine.streams:
            self._engine.streams.remove(self)
            self.sink.end()


class ChildEngine:
    model_input = ModelInput.Tokens

    def __init__(self, spec: EngineSpec) -> None:
        flags = Flags(add_help=False)
        flags.add_argument("--trouble", choices=("start", "canary", "silence", "close"))
        flags.add_argument("--follower", action="store_true")
        self.flags = flags.parse_args(spec.arguments)
        self.streams: list[Stream] = []
        self.registry = CollectorRegistry()
        self.generated = Counter("child:generated", "Requests", ["kind"], registry=self.registry)
        self.child: asyncio.subprocess.Process | None = None

    async def start(self) -> EngineInfo:
        print("the child engine loads", flush=True)
        if self.flags.trouble == "start":
            raise EngineError("no memory left")
        self.child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert self.child.stdout
        print("processes", (await self.child.stdout.readline()).decode().strip(), flush=True)
        return EngineInfo(follower=self.flags.follower)

    def generate(self, request: Any, sink: Sink) -> Running:
        """One token; the stream goes on until it is aborted, unless one token is all it asks for."""
        self.generated.labels("tokens").inc()
        stream = Stream(self, sink)
        if self.flags.trouble == "canary":
            sink.end()
            return stream
        self.streams.append(stream)
        if self.flags.trouble == "silence":
            print("the child engine is silent", flush=True)
            return stream
        sink.tokens([5])
        if request.stop_conditions.max_tokens == 1:
            stream.abort()
        return stream

    def quiet(self) -> bool:
        return not self.streams

    def on_death(self, listener: Any) -> None:
        async def watch() -> None:
            assert self.child
            listener(f"its process ended with {await self.child.wait()}")

        self.watching = asyncio.create_task(watch())

    def metrics_registry(self) -> CollectorRegistry:
        return self.registry

    def controls(self) -> dict[str, Any]:
        async def sleep(body: dict[str, Any]) -> Any:
            if "level" not in body:
                raise ValueError("sleep needs a level")
            return {"slept": body["level"]}

        async def wake_up(body: dict[str, Any]) -> Any:
            return None

        return {"sleep": sleep, "wake_up": wake_up}

    async def load_adapter(self, name: str, folder: Path) -> int:
        if not folder.is_dir():
            raise InvalidArgument(f"{folder} is no adapter")
        return 7

    async def unload_adapter(self, name: str) -> None: ...

    async def close(self) -> None:
        if self.flags.trouble == "close":
            await asyncio.Event().wait()
