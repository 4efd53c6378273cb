"""Sends the files of registered models to readers on other machines, which ask for them by checksum."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dynamo.model.card import GGUF
from dynamo.model.gguf import read_gguf
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import InvalidArgument, Unavailable
from dynamo.protocols.model_files import CHUNK_BYTES, FileChunk, FileRequest
from dynamo.runtime import DistributedRuntime, Endpoint
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.names import FILES_ENDPOINT, EndpointId


async def offer_files(endpoint: Endpoint, card: ModelCard) -> bool:
    """Send the card's files to readers that ask for them. False if there are none, or if no other process
    can reach this one."""
    if not card.files or endpoint.runtime.plane.transport == "memory":
        return False
    return await _offers(endpoint).add(endpoint.id, card)


def withdraw_files(endpoint: Endpoint) -> None:
    """Send the files of the model at this endpoint no longer."""
    _offers(endpoint).remove(endpoint.id)


def _offers(endpoint: Endpoint) -> FileOffers:
    id = endpoint.id
    key = (FileOffers, id.namespace, id.component)
    return endpoint.runtime.shared(key, lambda: FileOffers(endpoint.runtime, id))


class FileOffers:
    """The files of one instance of a component, served from the first model on as long as the runtime lives."""

    def __init__(self, runtime: DistributedRuntime, near: EndpointId) -> None:
        self._endpoint = Endpoint(runtime, EndpointId(near.namespace, near.component, FILES_ENDPOINT))
        self._by_model: dict[EndpointId, dict[str, OfferedFile]] = {}
        self._serving: asyncio.Task[None] | None = None
        self._found = False
        self._settled = asyncio.Event()

    async def add(self, model: EndpointId, card: ModelCard) -> bool:
        """Offer the files of the card; returns once readers can find the endpoint, or False if it failed to come up."""
        self._by_model[model] = {
            file.checksum: OfferedFile(Path(file.path), head_only=role == GGUF) for role, file in card.files.items()
        }
        if self._serving is None:
            self._serving = self._endpoint.runtime.own(self._serve(), f"the endpoint {FILES_ENDPOINT}")
        await self._settled.wait()
        return self._found

    def remove(self, model: EndpointId) -> None:
        self._by_model.pop(model, None)

    def _is_found(self) -> None:
        self._found = True
        self._settled.set()

    async def _serve(self) -> None:
        handler = GeneratorHandler(self._chunk)
        try:
            await self._endpoint.serve(
                handler, FileRequest, graceful_shutdown=False, auxiliary=True, on_found=self._is_found
            )
        finally:
            self._settled.set()
            await handler.close()

    async def _chunk(self, request: FileRequest) -> FileChunk:
        for files in self._by_model.values():
            if (file := files.get(request.checksum)) is not None:
                return await asyncio.to_thread(file.chunk, request.offset)
        raise InvalidArgument(f"no model card of this worker names a file with the checksum {request.checksum[:64]}")


class OfferedFile:
    """A file to send. Of a GGUF file that is the metadata at its head, which the card's checksum covers."""

    def __init__(self, path: Path, *, head_only: bool) -> None:
        self._path = path
        self._head_only = head_only
        self._head: int | None = None

    def chunk(self, offset: int) -> FileChunk:
        try:
            with self._path.open("rb") as file:
                size = self._head_size() if self._head_only else file.seek(0, 2)
                file.seek(min(offset, size))
                return FileChunk(size, file.read(min(CHUNK_BYTES, max(0, size - offset))))
        except OSError as error:
            raise Unavailable(f"the worker cannot read {self._path}: {error.strerror}") from error

    def _head_size(self) -> int:
        if self._head is None:
            self._head = read_gguf(self._path).size
        return self._head
