"""The processes that share one port. Whichever of them is asked for metrics asks the others for theirs, and what one is
told to change it tells the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from dynamo.runtime.instruments import MetricFamily, Sample
from dynamo.serving.overrides import Override

log = logging.getLogger(__name__)

Families = list[MetricFamily]
TIMEOUT = 2.0
LABEL = "http_worker"

T = TypeVar("T")


class AskMetrics(Struct, tag="metrics"):
    """Answered with the families of the process asked."""


class AskOverrides(Struct, tag="overrides"):
    """Answered with the overrides of the process asked, once it has taken over those it is told."""

    told: list[Override]


Question = AskMetrics | AskOverrides


class Siblings:
    """Each process answers questions at a socket in a folder that only this user can enter."""

    def __init__(self, folder: Path, index: int, count: int) -> None:
        self._folder = folder
        self._index = index
        self._count = count
        self._server: asyncio.Server | None = None
        self._own: Callable[[], Families] = list
        self._merged: Callable[[list[Override]], list[Override]] = list

    async def start(self, own: Callable[[], Families], merged: Callable[[list[Override]], list[Override]]) -> None:
        """`own` tells the families of this process; `merged` takes over what others have set and tells all there is."""
        self._own = own
        self._merged = merged
        path = self._path(self._index)
        # A predecessor that was killed left its socket behind.
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, path)
        await self.compare()

    async def close(self) -> None:
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    async def all_families(self) -> Families:
        """Each sample says whose it is: counters of different processes start over at different times, so no sum of
        them would be a counter. A process that does not answer is left out."""
        told = await asyncio.gather(*(self._families(index) for index in range(self._count)))
        return merge({str(index): families for index, families in enumerate(told)})

    async def compare(self) -> None:
        """Afterwards all that can be reached have set the same. One that cannot will ask by itself when it starts."""
        await asyncio.gather(*(self._compare_with(one) for one in range(self._count) if one != self._index))

    async def _compare_with(self, index: int) -> None:
        try:
            self._merged(await self._ask(index, AskOverrides(self._merged([])), list[Override]))
        except (TimeoutError, msgspec.MsgspecError) as error:
            log.warning("worker process %d does not take over thresholds: %s", index, _words(error))
        except OSError as error:
            log.debug("worker process %d is not there: %s", index, error)

    async def _families(self, index: int) -> Families:
        if index == self._index:
            return self._own()
        try:
            return await self._ask(index, AskMetrics(), Families)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("worker process %d does not tell its metrics: %s", index, _words(error))
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
                case AskOverrides(told):
                    answer: Families | list[Override] = self._merged(told)
                case _:
                    answer = self._own()
            writer.write(msgspec.msgpack.encode(answer))
            await writer.drain()
        except (ConnectionError, msgspec.MsgspecError):
            pass
        finally:
            writer.close()

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.sock"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def merge(told: dict[str, Families]) -> Families:
    """One list of families from several, each sample labelled with the process it came from."""
    merged: dict[str, MetricFamily] = {}
    for worker, families in told.items():
        for family in families:
            known = merged.setdefault(family.name, MetricFamily(family.name, family.help, family.kind, []))
            known.samples += [
                Sample(sample.name, {**sample.labels, LABEL: worker}, sample.value) for sample in family.samples
            ]
    return list(merged.values())
