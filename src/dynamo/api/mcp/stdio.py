"""An MCP server that is a program: a line for each message, on its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from dynamo.api.mcp.http import result_of
from dynamo.api.mcp.messages import MAX_MESSAGE, McpError, answer_to, decode
from dynamo.protocols.fields import JsonObject

KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "NODE_PATH", "npm_config_registry", "npm_config_cache")
"""What a program gets of this process's environment, which has keys."""
END_SECONDS = 2.0
"""How long a program may take to end once its input is closed."""


class StdioTransport:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self._input = process.stdin
        self._output = process.stdout

    async def exchange(self, message: JsonObject) -> JsonObject:
        await self.notify(message)
        while True:
            try:
                line = await self._output.readline()
            except ValueError:
                raise McpError(f"its answer is larger than {MAX_MESSAGE >> 20} MiB") from None
            if not line:
                raise McpError("its program ended")
            heard = decode(line)
            if heard.method is not None:
                if heard.id is not None:
                    await self.notify(answer_to(heard))
            elif heard.id == message["id"]:
                return result_of(heard)

    async def notify(self, message: JsonObject) -> None:
        try:
            self._input.write(msgspec.json.encode(message) + b"\n")
            await self._input.drain()
        except ConnectionError:
            raise McpError("its program ended") from None


@asynccontextmanager
async def open_stdio(command: Sequence[str]) -> AsyncIterator[StdioTransport]:
    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_MESSAGE,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        raise McpError(f"its program '{command[0]}' cannot be started: {error.strerror}") from None
    try:
        yield StdioTransport(process)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to end by closing its input; then end it with all that it started."""
    assert process.stdin
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
