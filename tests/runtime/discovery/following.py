"""Reading a watch in tests: wait for what must come, with a guard so that a failure ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from dynamo.runtime.discovery import Change, Discovery, Synced

GUARD = 20

Participant = Callable[[], Awaitable[Discovery]]


async def until(changes: AsyncIterator[Change], wanted: Change) -> list[Change]:
    """Everything told up to and including `wanted`."""
    seen: list[Change] = []
    async with asyncio.timeout(GUARD):
        async for change in changes:
            seen.append(change)
            if change == wanted:
                return seen
    raise AssertionError(f"the watch ended before {wanted}, after {seen}")


async def snapshot(changes: AsyncIterator[Change]) -> list[Change]:
    """What is told before Synced."""
    return (await until(changes, Synced()))[:-1]
