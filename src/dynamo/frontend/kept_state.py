"""What the server keeps between requests, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dynamo.api.answers.errors import error_answer
from dynamo.api.responses import stored_conversations as conversations
from dynamo.api.responses import stored_responses as responses
from dynamo.api.responses.background import BackgroundResponses
from dynamo.api.responses.stored_conversations import Conversations
from dynamo.api.responses.stored_responses import ResponseStore
from dynamo.frontend.admission.limits import KeyMeter, RateLimitExceeded
from dynamo.frontend.callers import BYTES_PER_TOKEN, Callers
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.siblings import Siblings
from dynamo.protocols.body_shape import BodyLimits
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import DynamoException, StartError
from dynamo.serving.batches import batches
from dynamo.serving.batches.batches import Batches
from dynamo.serving.batches.line import LineLimits
from dynamo.serving.models import Models
from dynamo.serving.store import Files, Limits, Records
from dynamo.serving.store.files import delete_leftovers
from dynamo.serving.store.processes import LiveProcesses
from dynamo.serving.store.records import MemoryRecords, OwnedRecords
from dynamo.serving.store.sqlite import SqliteRecords

DATABASE = "state.sqlite"
BATCHES = Limits(10_000, 64 << 20)


class OwnedState:
    """What the server keeps for one API key."""

    def __init__(
        self,
        records: Records,
        folder: Path | None,
        config: FrontendConfig,
        models: Models,
        processes: LiveProcesses,
        is_stopping: Callable[[], bool],
        meter: KeyMeter | None,
        tenant: Tenant | None,
    ) -> None:
        """`meter` has the limits of the key, if there are any; `tenant` is who it is where requests wait."""
        self.body_timeout = config.body_timeout
        """How long an upload may pause."""
        enabled = config.stored_responses > 0
        self.conversations = Conversations(records, enabled=enabled)
        self.responses = ResponseStore(records, self.conversations, processes, enabled=enabled)
        self.background = BackgroundResponses(self.responses, config.background_responses)
        self.files = Files(records, folder, config.stored_files_mb << 20)
        self.batches = Batches(
            records,
            self.files,
            models,
            concurrency=config.http_batch_concurrency,
            error_body=_error_body,
            is_stopping=is_stopping,
            ignore_unknown=config.ignores_unknown_fields,
            limits=LineLimits(config.body_limit_mb << 20, BodyLimits(config.body_items, config.body_fields)),
            admit=partial(_admit, meter),
            tenant=tenant,
        )


class KeptState:
    """Apart for each API key: one key does not read, list, continue or delete what was stored with another."""

    def __init__(
        self, records: Records, folder: Path | None, processes: LiveProcesses, owned: Mapping[str, OwnedState]
    ) -> None:
        self._records = records
        self._folder = folder
        self._processes = processes
        self._owned = owned

    def of(self, owner: str) -> OwnedState:
        return self._owned[owner]

    async def start(self) -> None:
        if self._folder is not None:
            await delete_leftovers(self._records, self._folder)
        for owned in self._owned.values():
            await owned.batches.start()

    async def stop_batches(self) -> None:
        for owned in self._owned.values():
            await owned.batches.close()

    async def background_idle(self) -> None:
        """Wait until no response runs in the background."""
        for owned in self._owned.values():
            await owned.background.idle()

    async def close(self) -> None:
        await self.stop_batches()
        for owned in self._owned.values():
            await owned.background.close()
        await self._records.close()
        self._processes.close()
        for owned in self._owned.values():
            owned.files.close()


async def open_state(
    config: FrontendConfig,
    siblings: Siblings | None,
    models: Models,
    is_stopping: Callable[[], bool],
    callers: Callers,
) -> KeptState:
    """Keep state in the configured folder. Without one it is in memory or, where several processes share the port, in
    their common folder, which is deleted when they end."""
    limits = Limits(config.stored_responses, config.stored_responses_mb << 20)
    kinds = {responses.KIND: limits, conversations.KIND: limits, batches.KIND: BATCHES}
    folder = _made(config.state_dir) if config.state_dir else siblings.folder if siblings else None
    records: Records = MemoryRecords(kinds)
    if folder is not None:
        records = await asyncio.to_thread(SqliteRecords, folder / DATABASE, kinds)
    processes = LiveProcesses(folder)
    owned = {
        owner: OwnedState(
            OwnedRecords(records, owner),
            folder,
            config,
            models,
            processes,
            is_stopping,
            callers.meter(owner),
            callers.tenant(owner),
        )
        for owner in config.keys().owners
    }
    return KeptState(records, folder, processes, owned)


def _made(path: str) -> Path:
    folder = Path(path).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--state-dir {folder}: {error.strerror}") from error
    return folder


def _admit(meter: KeyMeter | None, size: int) -> float | Callable[[int], None]:
    if meter is None:
        return lambda used: None
    try:
        return meter.admit(size // BYTES_PER_TOKEN + 1).end
    except RateLimitExceeded as error:
        return error.retry_after


def _error_body(error: DynamoException, request_id: str) -> tuple[int, Any]:
    return error.status, msgspec.to_builtins(error_answer(error, request_id))
