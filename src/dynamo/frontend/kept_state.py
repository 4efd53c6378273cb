"""What the server keeps between requests, and where."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.siblings import Siblings
from dynamo.protocols.errors import StartError
from dynamo.serving.store import Conversations, Limits, Records, ResponseStore, conversations, responses
from dynamo.serving.store.records import MemoryRecords
from dynamo.serving.store.sqlite import SqliteRecords

DATABASE = "state.sqlite"


class KeptState:
    def __init__(self, records: Records, config: FrontendConfig) -> None:
        self._records = records
        enabled = config.stored_responses > 0
        self.conversations = Conversations(records, enabled=enabled)
        self.responses = ResponseStore(records, self.conversations, enabled=enabled)

    async def close(self) -> None:
        await self._records.close()


async def open_state(config: FrontendConfig, siblings: Siblings | None) -> KeptState:
    """In the folder that is configured; else in memory, or, to be found by all processes of this port, in their folder,
    which goes with them."""
    limits = Limits(config.stored_responses, config.stored_responses_mb << 20)
    kinds = {responses.KIND: limits, conversations.KIND: limits}
    folder = _made(config.state_dir) if config.state_dir else siblings.folder if siblings else None
    if folder is None:
        return KeptState(MemoryRecords(kinds), config)
    return KeptState(await asyncio.to_thread(SqliteRecords, folder / DATABASE, kinds), config)


def _made(path: str) -> Path:
    folder = Path(path).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--state-dir {folder}: {error.strerror}") from error
    return folder
