"""Threads for encoding long texts: few, and shared fairly between clients."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock, Thread
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")

CLIENT: ContextVar[object] = ContextVar("client", default=None)
"""Whose text is encoded: clients take turns."""


class _EncodingJob(Struct, eq=False):
    work: Callable[[], Any]
    done: asyncio.Future[Any]
    client: object
    thread: Thread | None = None


class EncodingPool:
    """Runs one piece of work per client in turn; what waits for a caller that has left is never begun.

    A client never occupies the last free thread beside another piece of its own work.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or max(2, min(4, (os.cpu_count() or 1) // 2))
        self._lock = Lock()
        self._waiting: dict[object, deque[_EncodingJob]] = {}
        """By client; the first one is next."""
        self._running: list[object] = []
        """The clients."""

    async def run(self, work: Callable[[], T]) -> T:
        job = _EncodingJob(work, asyncio.get_running_loop().create_future(), CLIENT.get())
        with self._lock:
            self._waiting.setdefault(job.client, deque()).append(job)
            self._start()
        try:
            result: T = await job.done
            return result
        finally:
            if job.thread is not None and not job.done.cancelled():
                job.thread.join()  # it has nothing left to do

    def _start(self) -> None:
        """Begin as much of the waiting work as threads allow. Needs the lock."""
        while len(self._running) < self._threads and (job := self._next()):
            self._running.append(job.client)
            # A thread of its own: starting it costs little beside a long text, and none is left idle without an owner.
            job.thread = Thread(target=self._run, args=(job,), name="encoding")
            job.thread.start()

    def _next(self) -> _EncodingJob | None:
        for client in tuple(self._waiting):
            if self._running.count(client) >= max(1, self._threads - 1):
                continue
            jobs = self._waiting.pop(client)
            while jobs:
                job = jobs.popleft()
                if not job.done.cancelled():
                    if jobs:
                        self._waiting[client] = jobs
                    return job
        return None

    def _run(self, job: _EncodingJob) -> None:
        result, error = None, None
        try:
            result = job.work()
        except BaseException as raised:
            error = raised
        with self._lock:
            self._running.remove(job.client)
            self._start()
        try:
            job.done.get_loop().call_soon_threadsafe(_finish, job.done, result, error)
        except RuntimeError:
            pass  # the loop that waited is closed


def _finish(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
