"""Requests and aborts on their way to the engine's process: those of one turn of the loop are sent by one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Outbox:
    def __init__(self, core: Any, on_failure: Callable[[str, Exception], None]) -> None:
        """`on_failure` is called with the id of a request that could not be sent."""
        self._core = core
        self._on_failure = on_failure
        self._requests: dict[str, Any] = {}
        self._aborts: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Any) -> None:
        self._requests[request.request_id] = request
        self._wake()

    def abort(self, request_id: str) -> None:
        waiting = self._requests.get(request_id)
        if waiting is None or _fetches(waiting):
            self._aborts.append(request_id)
            self._wake()
        else:
            del self._requests[request_id]

    @property
    def empty(self) -> bool:
        """Nothing waits to be sent."""
        return self._task is None

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._requests or self._aborts:
                requests, self._requests = self._requests, {}
                aborts, self._aborts = self._aborts, []
                for request in requests.values():
                    try:
                        await self._core.add_request_async(request)
                    except Exception as error:
                        self._on_failure(request.request_id, error)
                if aborts:
                    await self._core.abort_requests_async(aborts)
        finally:
            self._task = None

    async def close(self) -> None:
        self._requests.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _fetches(request: Any) -> bool:
    """Whether another engine holds its prompt: only this engine can free that, also for a request that has ended."""
    params = request.sampling_params
    return bool(params is not None and params.extra_args and "kv_transfer_params" in params.extra_args)
