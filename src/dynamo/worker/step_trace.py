"""Records the steps of an engine as forward pass metrics: compressed lines, written by a thread of its own."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec

from dynamo.engines.base import Engine, StepSource
from dynamo.protocols.forward_pass import (
    ForwardPassMetrics,
    QueuedRequestMetrics,
    ScheduledRequestMetrics,
    StepTraceEvent,
    StepTraceRow,
    StepTraceSource,
)
from dynamo.runtime import Endpoint
from dynamo.settings.worker import StepTraceSettings

log = logging.getLogger(__name__)

_CAPACITY = 8192
"""Steps that may wait to be written; more are dropped."""
_FLUSH_SECONDS = 1.0
_CLOSE_SECONDS = 5.0


@asynccontextmanager
async def record_steps(endpoint: Endpoint, engine: Engine, settings: StepTraceSettings) -> AsyncIterator[None]:
    """Record the steps of a started engine while the block runs, if the settings say so and the engine can."""
    if settings.enabled and not isinstance(engine, StepSource):
        log.warning("--fpm-trace: this engine does not report its steps, so none are recorded")
    if not settings.enabled or not isinstance(engine, StepSource):
        yield
        return
    worker = StepTraceSource(endpoint.id.namespace, endpoint.id.component, str(endpoint.runtime.instance_id))
    trace = StepTrace(settings, worker)
    engine.on_steps(trace.record)
    try:
        yield
    finally:
        await asyncio.to_thread(trace.close)


class StepTrace:
    """Steps in, from any thread; what cannot be written ends the recording and nothing else."""

    def __init__(self, settings: StepTraceSettings, source: StepTraceSource) -> None:
        self._source = source
        self._mode = settings.mode
        self._began = time.monotonic()
        self._files = Segments(
            f"{settings.output_path}.{source.producer_id}", settings.roll_bytes, settings.max_segments
        )
        self._counters: dict[int, count[int]] = {}
        self._full = settings.mode == "full"
        self._waiting: deque[StepTraceRow] = deque()
        self._latest: dict[int, StepTraceRow] = {}
        self._dropped = 0
        self._broken = False
        self._closed = threading.Event()
        self._seconds = _FLUSH_SECONDS if self._full else settings.sample_interval_ms / 1e3
        self._thread = threading.Thread(target=self._write, name="step-trace", daemon=True)
        self._thread.start()

    def record(
        self, dp_rank: int, seconds: float, scheduled: ScheduledRequestMetrics, queued: QueuedRequestMetrics
    ) -> None:
        """One step; returns at once."""
        if self._broken:
            return
        number = next(self._counters.setdefault(dp_rank, count(1)))
        step = ForwardPassMetrics(
            worker_id=self._source.producer_id,
            dp_rank=dp_rank,
            counter_id=number,
            wall_time=seconds,
            scheduled_requests=scheduled,
            queued_requests=queued,
        )
        now = int(1e3 * (time.monotonic() - self._began))
        event = StepTraceEvent(
            source=self._source, capture_mode=self._mode, observed_at_unix_ms=time.time_ns() // 10**6, fpm=step
        )
        row = StepTraceRow(now, event)
        if not self._full:
            self._latest[dp_rank] = row
        elif len(self._waiting) < _CAPACITY:
            self._waiting.append(row)
        else:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits; a disk that hangs is not waited for."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _write(self) -> None:
        encode = msgspec.json.Encoder().encode
        ended, lost = False, 0
        while not ended:
            ended = self._closed.wait(self._seconds)
            lines = [encode(row) + b"\n" for row in self._take()]
            try:
                self._files.write(lines)
            except OSError as error:
                self._broken = True
                self._waiting.clear()
                log.error("forward pass metrics are no longer recorded: %s: %s", self._files.prefix, error.strerror)
                return
            if self._dropped > lost:
                lost = self._dropped
                log.warning("forward pass metrics: steps come faster than they are written, %d are lost", lost)

    def _take(self) -> list[StepTraceRow]:
        if self._full:
            return [self._waiting.popleft() for _ in range(len(self._waiting))]
        return [self._latest.pop(rank) for rank in list(self._latest)]


class Segments:
    """Numbered files of compressed lines, of which the newest are kept. What was written is complete at any time."""

    def __init__(self, prefix: str, roll_bytes: int, most: int) -> None:
        self.prefix = prefix
        self._roll_bytes = roll_bytes
        self._most = most
        self._number = -1
        self._size = 0

    def write(self, lines: Sequence[bytes]) -> None:
        """Raises OSError, and leaves no line that is cut."""
        batch: list[bytes] = []
        for line in lines:
            if self._number < 0 or (self._size and self._size + len(line) > self._roll_bytes):
                self._append(batch)
                batch = []
                self._begin()
            batch.append(line)
            self._size += len(line)
        self._append(batch)

    def _path(self, number: int) -> Path:
        return Path(f"{self.prefix}.{number:06}.jsonl.gz")

    def _begin(self) -> None:
        self._number += 1
        self._size = 0
        with self._path(self._number).open("xb"):
            pass
        if self._number >= self._most:
            self._path(self._number - self._most).unlink(missing_ok=True)

    def _append(self, lines: Sequence[bytes]) -> None:
        """As a gzip member of its own: a reader never finds the middle of one, also not after a crash."""
        if not lines:
            return
        with self._path(self._number).open("ab", buffering=0) as file:
            before = file.tell()
            data = gzip.compress(b"".join(lines), compresslevel=6)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                os.ftruncate(file.fileno(), before)
                raise
