"""The processes that share one port. Whichever of them is asked for metrics asks the others for theirs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from dynamo.runtime.instruments import Sample, Snapshot

log = logging.getLogger(__name__)

Families = list[Snapshot]
TIMEOUT = 2.0
LABEL = "http_worker"


class Siblings:
    """Each process tells its own families at a socket in a folder that only this user can enter."""

    def __init__(self, folder: Path, index: int, count: int) -> None:
        self._folder = folder
        self._index = index
        self._count = count
        self._server: asyncio.Server | None = None
        self._own: Callable[[], Families] = list

    async def start(self, own: Callable[[], Families]) -> None:
        self._own = own
        path = self._path(self._index)
        # A predecessor that was killed left its socket behind.
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._tell, path)

    async def close(self) -> None:
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    async def all_families(self) -> Families:
        """Each sample says whose it is: counters of different processes start over at different times, so no sum of
        them would be a counter. A process that does not answer is left out."""
        indices = range(self._count)
        told = await asyncio.gather(*(self._ask(index) for index in indices))
        return merge({str(index): families for index, families in zip(indices, told, strict=True)})

    async def _ask(self, index: int) -> Families:
        if index == self._index:
            return self._own()
        try:
            async with asyncio.timeout(TIMEOUT):
                reader, writer = await asyncio.open_unix_connection(self._path(index))
                try:
                    return msgspec.msgpack.decode(await reader.read(), type=Families)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("worker process %d does not tell its metrics: %s", index, error or type(error).__name__)
            return []

    async def _tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(msgspec.msgpack.encode(self._own()))
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.sock"


def merge(told: dict[str, Families]) -> Families:
    """One list of families from several, each sample labelled with the process it came from."""
    merged: dict[str, Snapshot] = {}
    for worker, families in told.items():
        for family in families:
            known = merged.setdefault(family.name, Snapshot(family.name, family.help, family.kind, []))
            known.samples += [
                Sample(sample.name, {**sample.labels, LABEL: worker}, sample.value) for sample in family.samples
            ]
    return list(merged.values())
