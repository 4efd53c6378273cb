"""Discovery between the processes of one machine, without any service: a folder watched by polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

from dynamo.runtime.discovery.base import Change, DiscoveryError, check_key
from dynamo.runtime.discovery.folder import LARGEST_RECORD, Folder
from dynamo.runtime.discovery.view import View

log = logging.getLogger("dynamo.runtime.discovery.file")

POLL = 0.15  # seconds between looks at the records
PROBE = 0.5  # seconds between looks at all leases
SWEEP = 60.0
WIPED_GRACE = 2.0  # after the folder was deleted, how long its records' owners have to put them back


class FileDiscovery:
    """One process's view of a folder, whose layout is described in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)
        self._view = View()
        self._refreshing = asyncio.Lock()
        self._keep_missing_until = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._folder.open)
        self._task = asyncio.create_task(self._run(), name="file discovery")

    async def put(self, key: str, value: bytes) -> None:
        _check(key, value)
        await asyncio.to_thread(self._folder.put, key, value)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._folder.delete, key)

    async def get_prefix(self, prefix: str) -> dict[str, bytes]:
        self._reject_unless_running()
        try:
            await self._refresh()
        except OSError as why:
            raise DiscoveryError(f"cannot read the discovery records in {self._folder.root}: {why.strerror}") from why
        return self._view.prefixed(prefix)

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        self._reject_unless_running()
        with suppress(OSError):  # the next look, a moment later, may succeed
            await self._refresh()
        async with aclosing(self._view.watch(prefix).changes()) as changes:
            async for change in changes:
                yield change

    async def close(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait([task])
        self._view.end_watches()
        await asyncio.to_thread(self._folder.close)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        probe_at = sweep_at = clock()
        failing = False
        while True:
            await asyncio.sleep(POLL if self._view.watched else PROBE)
            try:
                probing = clock() >= probe_at
                if probing:
                    probe_at = clock() + PROBE
                    if await asyncio.to_thread(self._folder.mend):
                        self._keep_missing_until = clock() + WIPED_GRACE
                        log.warning("%s was deleted: it was created again, with our records", self._folder.root)
                if self._view.watched:
                    if probing or await asyncio.to_thread(self._folder.has_changed):
                        await self._refresh()
                    if clock() >= sweep_at:
                        sweep_at = clock() + SWEEP
                        await asyncio.to_thread(self._folder.sweep)
                failing = False
            except Exception as why:
                # Without this task watches would freeze: no error may end it.
                if not failing:
                    expected = isinstance(why, OSError | DiscoveryError)
                    log.warning("discovery folder %s: %s; trying again", self._folder.root, why, exc_info=not expected)
                failing = True

    async def _refresh(self) -> None:
        # One at a time: an older scan must not overwrite a newer one.
        async with self._refreshing:
            records = await asyncio.to_thread(self._folder.scan)
            now = asyncio.get_running_loop().time()
            if not self._folder.in_place():
                self._keep_missing_until = now + WIPED_GRACE
            if now < self._keep_missing_until:
                records = self._view.records | records
            self._view.replace(records)

    def _reject_unless_running(self) -> None:
        if not self._task:
            raise DiscoveryError("this discovery is not started, or closed")


def _check(key: str, value: bytes) -> None:
    check_key(key)
    if len(key) + len(value) > LARGEST_RECORD - 1024:
        raise ValueError(f"the value of {key} has {len(value)} bytes, more than a discovery file can hold")
