"""Opens model cards of workers on other machines: files that are not here come from a worker, else from the hub."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import monotonic

from dynamo.model.card import LoadedModel, find_here, find_in_source, load
from dynamo.model.file_cache import FileCache
from dynamo.model.hub import FetchConfig, HubConfig
from dynamo.process.threads import in_thread
from dynamo.protocols.card import CardFile, ModelCard
from dynamo.protocols.errors import DynamoException, FileError, ProtocolError, from_exception
from dynamo.protocols.instance import Instance
from dynamo.protocols.model_files import CHUNK_BYTES, FileChunk, FileRequest
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.context import Context
from dynamo.runtime.plane.base import Channel
from dynamo.runtime.stream import FirstAnswer

log = logging.getLogger(__name__)

CHUNK_SECONDS = 10.0
"""A worker that sends no chunk for this long is passed over."""

Senders = Callable[[], Awaitable[list[Instance]]]
"""The instances that send a card's files, as far as they are known by now."""


class CardReader:
    """Opens cards, wherever their files are. `channel` leads to an instance."""

    def __init__(self, hub: HubConfig, channel: Callable[[Instance], Channel]) -> None:
        self._hub = hub
        self._channel = channel
        self._cache = FileCache(hub.fetch.cache, hub.fetch.cache_mb << 20) if hub.fetch else None

    async def open(self, card: ModelCard, senders: Senders) -> LoadedModel:
        """Load the model of a card; FileError if its files cannot be had, ModelError if they are of no use."""
        found = await in_thread(lambda: find_here(card, self._cache))
        missing = {role: file for role, file in card.files.items() if role not in found}
        refusals: list[str] = []
        if missing and self._cache and self._hub.fetch:
            transfer = Transfer(card.name, self._cache, self._hub.fetch, senders, self._channel)
            try:
                found |= await transfer.fetch(missing)
            except FileError as error:
                refusals.append(str(error))
        if len(found) < len(card.files):
            found |= await in_thread(lambda: find_in_source(card, found, self._hub, refusals))
        return await in_thread(lambda: load(card, found))


class Transfer:
    """Fetches the missing files of one model. A worker that fails is not asked again."""

    def __init__(
        self,
        model: str,
        cache: FileCache,
        config: FetchConfig,
        senders: Senders,
        channel: Callable[[Instance], Channel],
    ) -> None:
        self._model = model
        self._cache = cache
        self._config = config
        self._senders = senders
        self._channel = channel
        self._failed: dict[int, str] = {}
        self._bytes = 0

    async def fetch(self, missing: Mapping[str, CardFile]) -> dict[str, Path]:
        """All of these files, by role, from the cache they are put into; nothing if no worker sends files."""
        sender = await self._next_sender()
        if sender is None:
            return {}
        log.info("fetching %d files of model '%s' from its workers", len(missing), self._model)
        began = monotonic()
        found: dict[str, Path] = {}
        for role, file in missing.items():
            while role not in found:
                if sender is None:
                    raise FileError(f"no worker sent it ({'; '.join(self._failed.values())})")
                try:
                    found[role] = await self._store(file, await self._read(sender, file))
                except (DynamoException, TimeoutError, ValueError) as error:
                    why = f"worker {worker_name(sender.instance_id)}, {Path(file.path).name}: {_words(error)}"
                    log.warning("model '%s': %s", self._model, why)
                    self._failed[sender.instance_id] = why
                    sender = await self._next_sender()
        log.info(
            "fetched %d files of model '%s', %.1f MiB in %.1f s",
            len(found), self._model, self._bytes / (1 << 20), monotonic() - began,
        )  # fmt: skip
        return found

    async def _next_sender(self) -> Instance | None:
        # At random: many frontends that start together should not all ask the same worker.
        untried = [one for one in await self._senders() if one.instance_id not in self._failed]
        return random.choice(untried) if untried else None

    async def _read(self, sender: Instance, file: CardFile) -> bytearray:
        data = bytearray()
        size: int | None = None
        while size is None or len(data) < size:
            chunk = await self._ask(sender, FileRequest(file.checksum, len(data)))
            if size is None:
                size = chunk.size
                self._check_size(size)
            # No less either: a worker must not keep a reader busy with a file of single bytes.
            if chunk.size != size or len(chunk.data) != min(CHUNK_BYTES, size - len(data)):
                raise ValueError(f"the worker's chunk at byte {len(data)} of {size} does not fit")
            data += chunk.data
        return data

    def _check_size(self, size: int) -> None:
        for total, limit, what in (
            (size, self._config.file_mb, "one file (DYN_MODEL_FILE_MB)"),
            (self._bytes + size, self._config.total_mb, "all files of a model (DYN_MODEL_FILES_MB)"),
        ):
            if total > limit << 20:
                raise ValueError(f"{total} bytes are over the limit of {limit} MiB for {what}")

    async def _ask(self, sender: Instance, request: FileRequest) -> FileChunk:
        context, answer = Context(), FirstAnswer()
        try:
            async with asyncio.timeout(CHUNK_SECONDS):
                channel = self._channel(sender)
                if not channel.ready:
                    await channel.open()
                channel.send(request, context, answer, item_type=FileChunk)
                chunk = await answer.value
                if not isinstance(chunk, FileChunk):
                    raise ProtocolError("the worker answered with token ids")
                return chunk
        finally:
            context.kill()

    async def _store(self, file: CardFile, data: bytearray) -> Path:
        path = await in_thread(lambda: self._cache.put(file, data))
        self._bytes += len(data)
        return path


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {CHUNK_SECONDS:g} s"
    return from_exception(error).message
