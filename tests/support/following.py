"""Reading a watch in tests: wait for what must come, with a guard so that a failure ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import dynamo.runtime.discovery
from dynamo.runtime.discovery import Change, Discovery, Synced
from support.services import Etcd
from support.waiting import PATIENCE


class QuickEtcd(Etcd):
    """Elects itself at once: with the default timeouts every start of a lone server waits for a second."""

    def command(self) -> Sequence[str]:
        return [*super().command(), "--heartbeat-interval", "20", "--election-timeout", "100"]


Participant = Callable[[], Awaitable[Discovery]]


async def changes_until(changes: AsyncIterator[Change], wanted: Change) -> list[Change]:
    """Every change up to and including `wanted`."""
    seen: list[Change] = []
    async with asyncio.timeout(PATIENCE):
        async for change in changes:
            seen.append(change)
            if change == wanted:
                return seen
    raise AssertionError(f"the watch ended before {wanted}, after {seen}")


async def snapshot(changes: AsyncIterator[Change]) -> list[Change]:
    """The changes before Synced."""
    return (await changes_until(changes, Synced()))[:-1]


@asynccontextmanager
async def holder(backend: str, where: str, key: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child process that has created `key` and keeps it."""
    source = Path(dynamo.runtime.discovery.__file__).parents[3]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("holder.py")), backend, where, key,
        env={**os.environ, "PYTHONPATH": str(source)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"held\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
