"""Workers forked from a process that has their imports, where each would take a second of a processor to start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from support.stack import Process, Stack

FORK_SERVER = str(Path(__file__).with_name("fork_server.py"))
READY = "forking"


class ForkedChild:
    """What `Process` needs of a child."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, transport: asyncio.BaseTransport) -> None:
        self.pid = pid
        self.stdout = stdout
        self._transport = transport
        self.returncode: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its output has ended, which it does with the process; how that ended only the fork server knows."""
        self._transport.close()
        self.returncode = 0
        return self.returncode


class Forks:
    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._path = str(folder / "forks")

    async def start(self) -> None:
        server = await self._stack.python(FORK_SERVER, self._path)
        await server.line(READY)

    async def fork(self, command: Sequence[str], environ: dict[str, str]) -> Process:
        """A process that runs `python COMMAND`."""
        assert command[0] == "-m"
        reading, writing = os.pipe()
        message = json.dumps({"words": list(command[1:]), "environ": environ}).encode()
        pid = await asyncio.to_thread(self._ask, message, writing)
        os.close(writing)
        output = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb")
        )
        child: Any = ForkedChild(pid, output, transport)
        process = Process(" ".join(command), cast(asyncio.subprocess.Process, child))
        self._stack.processes.append(process)
        return process

    def _ask(self, message: bytes, output: int) -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            socket.send_fds(connection, [message], [output])
            return int(connection.recv(64))
