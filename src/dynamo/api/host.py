"""What the handlers of APIs need of the process that serves them, and what is kept there between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import Struct

from dynamo.api.answers.errors import error_answer
from dynamo.api.mcp.servers import McpServer
from dynamo.api.openai.trace_payload import PayloadCapture
from dynamo.api.responses import stored_conversations as conversations
from dynamo.api.responses import stored_responses as responses
from dynamo.api.responses import unfinished
from dynamo.api.responses.background import BackgroundResponses
from dynamo.api.responses.stored_conversations import Conversations
from dynamo.api.responses.stored_responses import ResponseStore
from dynamo.api.responses.takeover import Takeover
from dynamo.protocols.body_shape import BodyLimits
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import DynamoException, StartError
from dynamo.serving.batches import batches
from dynamo.serving.batches.batches import Admit, Batches
from dynamo.serving.batches.line import LineEndpoint, LineLimits
from dynamo.serving.models import Models
from dynamo.serving.store import Files, Limits, Records
from dynamo.serving.store.files import delete_leftovers
from dynamo.serving.store.processes import LiveProcesses
from dynamo.serving.store.records import MemoryRecords, OwnedRecords
from dynamo.serving.store.sqlite import SqliteRecords
from dynamo.settings.frontend import FrontendSettings

DATABASE = "state.sqlite"
BATCHES = Limits(10_000, 64 << 20)
TAKE_OVER_SECONDS = 2.0
"""How often a process looks whether another one of its folder has ended."""


class Owner(Struct, frozen=True):
    """The API key for which work runs outside a request, such as a batch."""

    admit: Admit
    """Admits a request within the limits of the key."""
    tenant: Tenant | None
    """The key's identity in the fair queue; None where there are no keys."""


class OwnedState:
    """What is kept for one API key."""

    def __init__(
        self,
        records: Records,
        folder: Path | None,
        settings: FrontendSettings,
        models: Models,
        endpoints: Mapping[str, LineEndpoint],
        processes: LiveProcesses,
        is_stopping: Callable[[], bool],
        owner: Owner,
    ) -> None:
        self.body_timeout = settings.body_timeout
        """How long an upload may pause."""
        enabled = settings.stored_responses > 0
        self.conversations = Conversations(records, enabled=enabled)
        self.responses = ResponseStore(records, self.conversations, processes, enabled=enabled)
        self.background = BackgroundResponses(self.responses, settings.background_responses)
        self.takeover = Takeover(self.responses, self.background, models, owner.admit, owner.tenant, is_stopping)
        self.files = Files(records, folder, settings.stored_files_mb << 20)
        self.batches = Batches(
            records,
            self.files,
            models,
            endpoints,
            concurrency=settings.http_batch_concurrency,
            error_body=_error_body,
            is_stopping=is_stopping,
            ignore_unknown=settings.ignores_unknown_fields,
            limits=LineLimits(settings.body_limit_mb << 20, BodyLimits(settings.body_items, settings.body_fields)),
            admit=owner.admit,
            tenant=owner.tenant,
        )


class KeptState:
    """Stored state, apart for each API key: no key reads, lists, continues or deletes what another has stored."""

    def __init__(
        self, records: Records, folder: Path | None, processes: LiveProcesses, owned: Mapping[str, OwnedState]
    ) -> None:
        self._records = records
        self._folder = folder
        self._processes = processes
        self._owned = owned
        self._taking_over: asyncio.Task[None] | None = None

    def of(self, owner: str) -> OwnedState:
        return self._owned[owner]

    async def start(self) -> None:
        if self._folder is not None:
            await delete_leftovers(self._records, self._folder)
            self._taking_over = asyncio.create_task(self._take_over())
        for owned in self._owned.values():
            await owned.batches.start()

    async def _take_over(self) -> None:
        """Go on with the batches and the background responses of processes of this folder that have ended."""
        rounds, waits = 0, True
        while True:
            await asyncio.sleep(TAKE_OVER_SECONDS)
            # Twice: of what a process held when it was killed, the journal of a batch may be released last.
            rounds = 2 if await asyncio.to_thread(self._processes.others_ended) else max(0, rounds - 1)
            if rounds or waits:
                waits = False
                for owned in self._owned.values():
                    waits |= await owned.takeover.round()
            if rounds and self._folder:
                await delete_leftovers(self._records, self._folder)
                for owned in self._owned.values():
                    await owned.batches.start()

    @property
    def batch_lines(self) -> int:
        """Lines of batches that models are answering."""
        return sum(owned.batches.asking for owned in self._owned.values())

    async def stop_batches(self) -> None:
        if self._taking_over:
            self._taking_over.cancel()
            await asyncio.gather(self._taking_over, return_exceptions=True)
            self._taking_over = None
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


class Host(Protocol):
    """The HTTP process, as the handlers of APIs see it."""

    models: Models
    state: KeptState
    """What is kept between requests, apart for each API key."""

    def may_administer(self, request: web.Request) -> bool:
        """Whether its sender may use the routes of administrators."""

    strips_preamble: bool
    """The line that Claude Code writes for Anthropic's billing is left out of prompts."""
    mcp: Mapping[str, McpServer]
    """The MCP servers that the operator has named."""
    payloads: PayloadCapture | None
    """Where request traces keep what chats said."""


async def open_state(
    settings: FrontendSettings,
    owners: Mapping[str, Owner],
    models: Models,
    endpoints: Mapping[str, LineEndpoint],
    is_stopping: Callable[[], bool],
    shared: Path | None = None,
) -> KeptState:
    """Keep state in the configured folder. Without one it is in memory or, where several processes share the port, in
    the folder that they share."""
    limits = Limits(settings.stored_responses, settings.stored_responses_mb << 20)
    kinds = {responses.KIND: limits, conversations.KIND: limits, batches.KIND: BATCHES}
    kinds[unfinished.KIND] = unfinished.LIMITS
    folder = _make_folder(settings.state_dir) if settings.state_dir else shared
    records: Records = MemoryRecords(kinds)
    if folder is not None:
        records = await asyncio.to_thread(SqliteRecords, folder / DATABASE, kinds)
    processes = LiveProcesses(folder)
    owned = {
        name: OwnedState(
            OwnedRecords(records, name), folder, settings, models, endpoints, processes, is_stopping, owner
        )
        for name, owner in owners.items()
    }
    return KeptState(records, folder, processes, owned)


def _make_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--state-dir {folder}: {error.strerror}") from error
    return folder


def _error_body(error: DynamoException, request_id: str) -> tuple[int, Any]:
    return error.status, msgspec.to_builtins(error_answer(error, request_id))
