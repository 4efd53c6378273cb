"""Where the rows of request traces go: a file, standard error, OpenTelemetry; and which rows there are."""

from __future__ import annotations

import os
import re
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from dynamo.settings import Setting, Settings
from dynamo.settings.setting import truthy

SCHEMA = "dynamo.request.trace.v1"
GZIP = 31
"""What zlib calls the format of gzip, with its largest window."""
END, PAYLOAD, TOOL = "request_end", "request_payload", "tool"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _is_sink(name: str) -> bool:
    return name in SINKS


def _is_record(name: str) -> bool:
    return name in (END, PAYLOAD, TOOL)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _is_header_name(name: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None


class TraceSettings(Settings, frozen=True, kw_only=True):
    enabled: Annotated[bool, Setting(
        variables="DYN_REQUEST_TRACE", help="write a row about each request", parse=truthy)] = False  # fmt: skip


class TraceSinkSettings(Settings, frozen=True, kw_only=True):
    """Read only when rows are written."""

    # fmt: off
    records: Annotated[tuple[str, ...], Setting(
        variables="DYN_REQUEST_TRACE_RECORDS",
        help="which rows: request_end, and request_payload with what chat requests and their answers say",
        valid=_is_record, expects="request_end or request_payload")] = (END,)
    captured_headers: Annotated[tuple[str, ...], Setting(
        variables="DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST",
        help="names of HTTP headers that request_payload rows keep, as they are", parse=_words,
        valid=_is_header_name, expects="names of HTTP headers")] = ()
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
    otel_max_payload_bytes: Annotated[int, Meta(ge=1), Setting(
        variables="DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES",
        help="instead of a larger request_payload row, the sink otel gets one without request and response")] = 4 << 20
    # fmt: on


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
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


class OtelLogs:
    """Each row is a log record of OpenTelemetry."""

    def __init__(self, settings: TraceSinkSettings) -> None:
        try:
            from opentelemetry._logs import LogRecord, SeverityNumber
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        except ImportError as error:
            raise ValueError(
                "DYN_REQUEST_TRACE_SINKS names otel, which needs OpenTelemetry: pip install 'dynamo-serving[otel]'"
            ) from error
        self.max_payload_bytes = settings.otel_max_payload_bytes
        provider = LoggerProvider()
        provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._logger = provider.get_logger(SCHEMA)
        self._record, self._severity = LogRecord, SeverityNumber.INFO

    def __call__(self, line: bytes) -> None:
        self._logger.emit(
            self._record(
                timestamp=time.time_ns(),
                severity_number=self._severity,
                body=line.decode().rstrip(),
                attributes={"event.name": SCHEMA},
            )
        )


SINKS: dict[str, Callable[[TraceSinkSettings], Callable[[bytes], None]]] = {
    "file": _file_sink,
    "stderr": _stderr_sink,
    "otel": OtelLogs,
}
