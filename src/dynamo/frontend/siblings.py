"""The processes that share one port: each reports the metrics of all, and thresholds set at one apply to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from dynamo.runtime.metrics import MetricFamily, Sample, merged
from dynamo.serving.overrides import Override

log = logging.getLogger(__name__)

Families = list[MetricFamily]
TIMEOUT = 2.0
LABEL = "http_worker"

T = TypeVar("T")


class AskMetrics(Struct, tag="metrics"):
    """A question, answered with the metric families of the process."""


class AskOverrides(Struct, tag="overrides"):
    """A question: the process merges `known` into its overrides and answers with the result."""

    known: list[Override]


Question = AskMetrics | AskOverrides


class Siblings:
    """Each process answers the others on a Unix socket in a folder that only this user can enter."""

    def __init__(self, folder: Path, index: int, count: int) -> None:
        self.folder = folder
        self._index = index
        self._count = count
        self._server: asyncio.Server | None = None
        self._own: Callable[[], Families] = list
        self._merge: Callable[[list[Override]], list[Override]] = list

    async def start(self, own: Callable[[], Families], merge: Callable[[list[Override]], list[Override]]) -> None:
        """`own` returns the families of this process; `merge` adds overrides to its own and returns the result."""
        self._own = own
        self._merge = merge
        path = self._path(self._index)
        # A predecessor that was killed left its socket behind.
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, path)
        await self.sync_overrides()

    async def close(self) -> None:
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    async def all_families(self) -> Families:
        """Labelled by process, not summed: processes restart at different times, so a sum could decrease.
        A process that does not answer is left out."""
        answers = await asyncio.gather(*(self._families(index) for index in range(self._count)))
        return merge({str(index): families for index, families in enumerate(answers)})

    async def sync_overrides(self) -> None:
        """Exchange overrides with all processes that can be reached; the others do it when they start."""
        await asyncio.gather(*(self._sync_with(one) for one in range(self._count) if one != self._index))

    async def _sync_with(self, index: int) -> None:
        try:
            self._merge(await self._ask(index, AskOverrides(self._merge([])), list[Override]))
        except (TimeoutError, msgspec.MsgspecError) as error:
            log.warning("worker process %d does not accept thresholds: %s", index, _words(error))
        except OSError as error:
            log.debug("worker process %d cannot be reached: %s", index, error)

    async def _families(self, index: int) -> Families:
        if index == self._index:
            return self._own()
        try:
            return await self._ask(index, AskMetrics(), Families)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("worker process %d does not report its metrics: %s", index, _words(error))
            return []

    async def _ask(self, index: int, question: Question, answer: type[T]) -> T:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(self._path(index))
            try:
                writer.write(msgspec.msgpack.encode(question))
                writer.write_eof()
                return msgspec.msgpack.decode(await reader.read(), type=answer)
            finally:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match msgspec.msgpack.decode(await reader.read(), type=Question):
                case AskOverrides(known):
                    answer: Families | list[Override] = self._merge(known)
                case _:
                    answer = self._own()
            writer.write(msgspec.msgpack.encode(answer))
            await writer.drain()
        except (ConnectionError, msgspec.MsgspecError):
            pass
        finally:
            writer.close()

    def _path(self, index: int) -> Path:
        return self.folder / f"{index}.sock"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def merge(by_process: dict[str, Families]) -> Families:
    """One list of families from several, each sample labelled with the process it came from."""
    return merged(
        MetricFamily(
            family.name,
            family.help,
            family.kind,
            [Sample(sample.name, {**sample.labels, LABEL: process}, sample.value) for sample in family.samples],
        )
        for process, families in by_process.items()
        for family in families
    )
