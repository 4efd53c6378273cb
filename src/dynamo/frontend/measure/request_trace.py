"""Writes a row about each request that ended, for replay and analysis: who came when, how long, how much was cached.

A prompt appears only as the hashes of its blocks. Rows are made when a request has ended and written by a thread; when
the thread cannot keep up, rows are dropped and counted, never waited for.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dynamo.frontend.measure.request_record import RequestRecord, error_type
from dynamo.kv.hashing import PromptHashes
from dynamo.protocols.engine import PreprocessedRequest, Routing
from dynamo.router.delivery import Delivery
from dynamo.settings import Setting, Settings
from dynamo.settings.setting import truthy

log = logging.getLogger(__name__)

SCHEMA = "dynamo.request.trace.v1"
BLOCK_SIZE = 64
"""Tokens of a prompt behind each hash in a row, whatever the workers' block size is."""
GZIP = 31
"""What zlib calls the format of gzip, with its largest window."""
_NO_ROUTING = Routing()


def _is_sink(name: str) -> bool:
    return name in SINKS


class TraceSettings(Settings, frozen=True, kw_only=True):
    enabled: Annotated[bool, Setting(
        variables="DYN_REQUEST_TRACE", help="write a row about each request", parse=truthy)] = False  # fmt: skip


class TraceSinkSettings(Settings, frozen=True, kw_only=True):
    """Read only when rows are written."""

    # fmt: off
    sinks: Annotated[tuple[str, ...], Setting(
        variables="DYN_REQUEST_TRACE_SINKS", help="where to: file, stderr, otel",
        valid=_is_sink, expects="file, stderr or otel")] = ("file",)
    file_path: Annotated[str, Setting(
        variables="DYN_REQUEST_TRACE_FILE_PATH", help="the file")] = "dynamo-request-trace.jsonl"
    file_format: Annotated[Literal["jsonl", "jsonl_gz"], Setting(
        variables="DYN_REQUEST_TRACE_FILE_FORMAT", help="plain or compressed lines")] = "jsonl"
    roll_bytes: Annotated[int, Meta(ge=1 << 10), Setting(
        variables="DYN_REQUEST_TRACE_FILE_ROLL_BYTES",
        help="a file of this size is renamed to NAME.1, NAME.2, … and a new one begun")] = 256 << 20
    capacity: Annotated[int, Meta(ge=1), Setting(
        variables="DYN_REQUEST_TRACE_CAPACITY", help="rows that may wait to be written; more are dropped")] = 1024
    # fmt: on


class TracedWorker(Struct, kw_only=True, omit_defaults=True):
    decode_worker_id: int | None = None
    decode_dp_rank: int | None = None


class TracedPrompt(Struct, kw_only=True):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: list[int]


class TracedEnd(Struct, kw_only=True, omit_defaults=True):
    request_id: str
    x_request_id: str
    model: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    request_received_ms: float
    prefill_wait_time_ms: float | None = None
    """Until the request was at a worker."""
    prefill_time_ms: float | None = None
    ttft_ms: float | None = None
    total_time_ms: float
    avg_itl_ms: float | None = None
    kv_hit_rate: float | None = None
    worker: TracedWorker | None = None
    replay: TracedPrompt | None = None
    finish_reason_metadata: dict[str, Any] | None = None
    """Of a request that failed: its status and the kind of error."""


class TraceLine(Struct, kw_only=True):
    schema: str = SCHEMA
    event_type: str = "request_end"
    event_time_unix_ms: float
    request: TracedEnd


class RequestTrace:
    """`ended` is called for every request; `close` writes what waits."""

    def __init__(self, writers: list[Callable[[bytes], None]], capacity: int) -> None:
        self.dropped = 0
        self._hashes = PromptHashes(BLOCK_SIZE)
        self._encode = msgspec.json.Encoder().encode
        self._writers = writers
        self._waiting: queue.Queue[bytes | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._write, name="request trace", daemon=True)
        self._thread.start()

    def ended(self, record: RequestRecord, status: int) -> None:
        """Write the row of a request. A row describes one prompt and one choice: requests with more have none."""
        deliveries = record.deliveries
        if len(deliveries) != 1:
            return
        line = self._encode(TraceLine(event_time_unix_ms=time.time() * 1e3, request=self._end(record, status)))
        try:
            self._waiting.put_nowait(line + b"\n")
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("request trace: rows come faster than they are written, some are dropped")

    def close(self) -> None:
        """Write what waits; a sink that hangs is not waited for."""
        try:
            self._waiting.put(None, timeout=1.0)
        except queue.Full:
            return
        self._thread.join(timeout=5.0)
        for write in self._writers:
            if isinstance(write, RollingFile):
                try:
                    write.close()
                except OSError as error:
                    log.error("request trace: cannot write the last row: %s", error)

    def _end(self, record: RequestRecord, status: int) -> TracedEnd:
        (delivery,) = record.deliveries
        duration = perf_counter() - record.started
        first, placed = record.time_to_first_token, delivery.history.placed_at
        waited = placed - record.started if placed else None
        output = record.output_tokens
        failure = error_type(status, record.error)
        decision = delivery.placement.decision if delivery.placement else None
        return TracedEnd(
            request_id=record.request_id,
            x_request_id=record.request_id,
            model=record.model,
            input_tokens=record.input_tokens,
            output_tokens=output,
            cached_tokens=record.cached_tokens,
            request_received_ms=(time.time() - duration) * 1e3,
            prefill_wait_time_ms=None if waited is None else waited * 1e3,
            prefill_time_ms=None if first is None or waited is None else (first - waited) * 1e3,
            ttft_ms=None if first is None else first * 1e3,
            total_time_ms=duration * 1e3,
            avg_itl_ms=None if first is None or output < 2 else (duration - first) / (output - 1) * 1e3,
            kv_hit_rate=decision.hit_rate if decision else None,
            worker=_worker(delivery),
            replay=self._prompt(delivery.request),
            finish_reason_metadata={"status": status, "error": failure} if failure else None,
        )

    def _prompt(self, request: Any) -> TracedPrompt | None:
        if not isinstance(request, PreprocessedRequest):
            return None
        routing = request.routing or _NO_ROUTING
        hashes = self._hashes.of(request.token_ids, lora_name=routing.lora_name, cache_salt=routing.cache_salt)
        return TracedPrompt(
            trace_block_size=BLOCK_SIZE, input_length=len(request.token_ids), input_sequence_hashes=hashes
        )

    def _write(self) -> None:
        failing = set[Callable[[bytes], None]]()
        while (line := self._waiting.get()) is not None:
            for write in self._writers:
                try:
                    write(line)
                    failing.discard(write)
                except Exception as error:
                    if write not in failing:
                        log.error("request trace: cannot write a row: %s", error)
                    failing.add(write)


def _worker(delivery: Delivery) -> TracedWorker | None:
    placement = delivery.placement
    if placement is None:
        return None
    return TracedWorker(decode_worker_id=placement.instance_id, decode_dp_rank=placement.dp_rank)


class RollingFile:
    """Lines appended to a file, which is set aside when it has grown large enough.

    What could not be written, or only in part, is written first when the next line comes: a full disk loses lines
    but leaves none that is cut, and no broken compressed file.
    """

    def __init__(self, path: Path, roll_bytes: int, *, compressed: bool) -> None:
        self._path = path
        self._roll_bytes = roll_bytes
        self._compressed = compressed
        self._unwritten = b""
        self._fd: int | None = None
        self._open()
        self._size = path.stat().st_size

    def __call__(self, line: bytes) -> None:
        """Raises OSError when the line is lost, or is kept until the next one comes."""
        if self._fd is None:
            self._open()
        self._write()
        if self._size and self._size + len(line) > self._roll_bytes:
            self._roll()
        self._size += len(line)
        # Each row can be read at once, and a crash loses none that was written.
        if self._compressed:
            line = self._compressor.compress(line) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._write(line)

    def close(self) -> None:
        if self._fd is not None:
            try:
                self._write(self._compressor.flush() if self._compressed else b"")
            finally:
                os.close(self._fd)
                self._fd = None

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._compressor = zlib.compressobj(wbits=GZIP)

    def _roll(self) -> None:
        self.close()
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.{number}")).exists():
            number += 1
        self._path.rename(aside)
        self._size = 0
        self._open()

    def _write(self, data: bytes = b"") -> None:
        assert self._fd is not None
        self._unwritten += data
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]


def _file_sink(settings: TraceSinkSettings) -> Callable[[bytes], None]:
    path = Path(settings.file_path)
    try:
        return RollingFile(path, settings.roll_bytes, compressed=settings.file_format == "jsonl_gz")
    except OSError as error:
        raise ValueError(f"DYN_REQUEST_TRACE_FILE_PATH: cannot write {path}: {error.strerror}") from None


def _stderr_sink(settings: TraceSinkSettings) -> Callable[[bytes], None]:
    def write(line: bytes) -> None:
        sys.stderr.write(line.decode())
        sys.stderr.flush()

    return write


def _otel_sink(settings: TraceSinkSettings) -> Callable[[bytes], None]:
    """Each row is a log record of OpenTelemetry."""
    try:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    except ImportError as error:
        raise ValueError(
            "DYN_REQUEST_TRACE_SINKS names otel but OpenTelemetry is not installed: pip install 'dynamo-py[otel]'"
        ) from error
    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    logger = provider.get_logger(SCHEMA)

    def write(line: bytes) -> None:
        logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_number=SeverityNumber.INFO,
                body=line.decode().rstrip(),
                attributes={"event.name": SCHEMA},
            )
        )

    return write


SINKS: dict[str, Callable[[TraceSinkSettings], Callable[[bytes], None]]] = {
    "file": _file_sink,
    "stderr": _stderr_sink,
    "otel": _otel_sink,
}


def request_trace_from_env(environ: Mapping[str, str]) -> RequestTrace | None:
    """None unless enabled; a ValueError names the variable that is wrong."""
    if not TraceSettings.from_env(environ).enabled:
        return None
    settings = TraceSinkSettings.from_env(environ)
    return RequestTrace([SINKS[name](settings) for name in settings.sinks], settings.capacity)
