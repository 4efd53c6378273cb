"""Requests of background responses, kept while they run: another process goes on with one whose own has ended."""

from __future__ import annotations

import logging

import msgspec
from msgspec import Raw, Struct, structs

from dynamo.protocols.errors import CannotStore
from dynamo.serving.resumable import StreamName
from dynamo.serving.store.processes import LiveProcesses
from dynamo.serving.store.records import Limits, Records

log = logging.getLogger(__name__)

KIND = "unfinished_response"
LIMITS = Limits(10_000, 256 << 20)
MOST_PRODUCERS = 6
"""A response whose processes have ended this often is not given to another one: it may be the cause."""


class UnfinishedRequest(Struct, frozen=True, kw_only=True):
    id: str
    """The response's."""
    body: Raw
    """The client's own JSON."""
    stream: StreamName
    """How its worker keeps the answer, for whoever goes on with it."""
    created: int
    producer: str = ""
    """The process that produces the response."""
    producers: int = 1
    """How many there were, with this one."""


class UnfinishedRequests:
    """Those of one API key."""

    def __init__(self, records: Records, processes: LiveProcesses) -> None:
        self._records = records
        self._processes = processes

    @property
    def shared(self) -> bool:
        """Another process can find them."""
        return self._processes.shared

    async def add(self, request: UnfinishedRequest) -> None:
        """A failure is logged: the response is produced here all the same."""
        try:
            await self._records.put(KIND, request.id, _encode(structs.replace(request, producer=self._processes.own)))
        except CannotStore as error:
            log.error("no other process could continue response %s: %s", request.id, error.message)

    async def drop(self, id: str) -> None:
        await self._records.delete(KIND, id)

    async def holds(self, id: str) -> bool:
        return await self._records.get(KIND, id) is not None

    async def abandoned(self) -> list[UnfinishedRequest]:
        """Those whose process has ended."""
        found = [_request.decode(body) for body in await self._records.all(KIND)]
        return [each for each in found if not self._processes.is_alive(each.producer)]

    async def take(self, abandoned: UnfinishedRequest) -> bool:
        """Make this process the producer; False if another one was faster."""
        own = self._processes.own

        def change(body: bytes) -> bytes:
            now = _request.decode(body)
            if now.producer != abandoned.producer:
                return body
            return _encode(structs.replace(now, producer=own, producers=now.producers + 1))

        body = await self._records.update(KIND, abandoned.id, change)
        return body is not None and _request.decode(body).producer == own


_request = msgspec.json.Decoder(UnfinishedRequest)
_encode = msgspec.json.encode
