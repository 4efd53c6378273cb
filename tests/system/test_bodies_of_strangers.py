"""Many clients without a key send bodies at the same moment: a frontend that finds all of them at once keeps little."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from support.stack import Stack

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STRANGERS = 120
MEGABYTES = 16
"""What all of them may take; before, a body in chunks of a byte took 800 KB of each."""


def most_memory(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


@pytest.mark.parametrize(
    "body",
    [
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 60_000,
        b"Content-Length: 40000000\r\n\r\n" + b" " * 400_000,
    ],
    ids=["chunks of a byte", "a large one"],
)
async def test_bodies_are_not_kept_before_their_key_is_known(stack: Stack, body: bytes) -> None:
    frontend = await stack.frontend("--api-key", "secret")
    host, _, port = frontend.url.removeprefix("http://").partition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(STRANGERS)]
    # One after the other first, so that what serving itself takes is not counted.
    for _ in range(3):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(POST + body)
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"401"
        writer.transport.abort()
    before = most_memory(frontend.process.child.pid)
    frontend.process.signal(signal.SIGSTOP)
    for _, writer in opened:
        writer.write(POST + body)
    await asyncio.sleep(0)
    frontend.process.signal(signal.SIGCONT)
    for reader, writer in opened:
        with suppress(ConnectionError):
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"401"
        writer.transport.abort()
    assert most_memory(frontend.process.child.pid) - before < MEGABYTES
