"""Writes a row about each request that ended, for replay and analysis: who came when, how long, how much was cached.

A prompt appears only as the hashes of its blocks, unless rows with what was said are asked for. Rows are made when a
request has ended and written by a thread. When the thread cannot keep up, rows are dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dynamo.api.openai.trace_payload import CapturedPayload, PayloadCapture, TracedPayload
from dynamo.frontend.measure.request_record import RequestRecord, error_type
from dynamo.frontend.measure.trace_sinks import (
    END,
    PAYLOAD,
    SCHEMA,
    SINKS,
    TOOL,
    OtelLogs,
    RollingFile,
    TraceSettings,
    TraceSinkSettings,
)
from dynamo.kv.hashing import PromptHashes
from dynamo.protocols.engine import PreprocessedRequest, Routing
from dynamo.router.delivery.delivery import Delivery

log = logging.getLogger(__name__)

BLOCK_SIZE = 64
"""Tokens of a prompt behind each hash in a row, whatever the workers' block size is."""
_WAITING_BYTES = 64 << 20
"""What was said in the rows that wait to be written, at most; further such rows are dropped."""
_NO_ROUTING = Routing()


class TracedWorker(Struct, kw_only=True, omit_defaults=True):
    decode_worker_id: int | None = None
    decode_dp_rank: int | None = None


class TracedPrompt(Struct, kw_only=True):
    trace_block_size: int
    input_length: int
    input_sequence_hashes: list[int]


class TracedAgent(Struct, kw_only=True, omit_defaults=True):
    session_id: str
    parent_session_id: str = ""
    session_final: bool = False


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
    agent_context: TracedAgent | None = None
    """The session, if its client named it."""
    replay: TracedPrompt | None = None
    finish_reason_metadata: dict[str, Any] | None = None
    """The status and the kind of error of a request that failed."""


class TraceLine(Struct, kw_only=True):
    schema: str = SCHEMA
    event_type: str = END
    event_time_unix_ms: float
    event_source: str | UnsetType = UNSET
    request: TracedEnd | UnsetType = UNSET
    payload: TracedPayload | UnsetType = UNSET


class PayloadRow(Struct, frozen=True):
    """Encoded by the thread that writes it: bodies can be large."""

    request_id: str
    ended_at: float
    captured: CapturedPayload

    def line(self, encoder: msgspec.json.Encoder, limit: int | None = None) -> bytes:
        row = self.captured.to_row if limit is None else partial(self.captured.to_marker, limit=limit)
        line = TraceLine(
            event_type=PAYLOAD,
            event_time_unix_ms=self.ended_at * 1e3,
            event_source="dynamo",
            payload=row(self.request_id),
        )
        return encoder.encode(line) + b"\n"


class RequestTrace:
    """`ended` is called for every request; `close` writes what waits."""

    def __init__(
        self,
        writers: list[Callable[[bytes], None]],
        capacity: int,
        *,
        ends: bool = True,
        payloads: PayloadCapture | None = None,
    ) -> None:
        """With `ends` a row about each request, with `payloads` one with what a chat request said."""
        self.dropped = 0
        self.payloads = payloads
        self._ends = ends
        self._hashes = PromptHashes(BLOCK_SIZE)
        self._encoder = msgspec.json.Encoder()
        self._writers = writers
        self._waiting: queue.Queue[bytes | PayloadRow | None] = queue.Queue(capacity)
        self._added_bytes = self._written_bytes = 0
        """Counted by the loop and by the thread; the difference waits."""
        self._thread = threading.Thread(target=self._write, name="request trace", daemon=True)
        self._thread.start()

    def ended(self, record: RequestRecord, status: int) -> None:
        """Write the row of a request. A row describes one prompt and one choice: requests with more have none."""
        if self._ends and len(record.deliveries) == 1:
            line = TraceLine(event_time_unix_ms=time.time() * 1e3, request=self._end(record, status))
            self._add(self._encoder.encode(line) + b"\n")
        if (said := record.payload) is not None:
            if self._added_bytes - self._written_bytes + said.size > _WAITING_BYTES:
                self._drop()
            elif self._add(PayloadRow(record.request_id, time.time(), said)):
                self._added_bytes += said.size

    def _add(self, row: bytes | PayloadRow) -> bool:
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
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
            agent_context=_agent(record),
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
        while (row := self._waiting.get()) is not None:
            for write in self._writers:
                try:
                    write(row if isinstance(row, bytes) else self._payload_line(row, write))
                    failing.discard(write)
                except Exception as error:
                    if write not in failing:
                        log.error("request trace: cannot write a row: %s", error)
                    failing.add(write)
            if isinstance(row, PayloadRow):
                self._written_bytes += row.captured.size

    def _payload_line(self, row: PayloadRow, write: Callable[[bytes], None]) -> bytes:
        line = row.line(self._encoder)
        limit = write.max_payload_bytes if isinstance(write, OtelLogs) else len(line)
        return line if len(line) <= limit else row.line(self._encoder, limit)


def _agent(record: RequestRecord) -> TracedAgent | None:
    session = record.session
    if session is None or not session.named:
        return None
    return TracedAgent(session_id=session.id, parent_session_id=session.parent, session_final=session.final)


def _worker(delivery: Delivery) -> TracedWorker | None:
    placement = delivery.placement
    if placement is None:
        return None
    return TracedWorker(decode_worker_id=placement.instance_id, decode_dp_rank=placement.dp_rank)


def request_trace_from_env(environ: Mapping[str, str]) -> RequestTrace | None:
    """None unless enabled; a ValueError names the variable that is wrong."""
    if not TraceSettings.from_env(environ).enabled:
        return None
    settings = TraceSinkSettings.from_env(environ)
    if settings.captured_headers and PAYLOAD not in settings.records:
        raise ValueError(
            "DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST needs request_payload in DYN_REQUEST_TRACE_RECORDS"
        )
    if TOOL in settings.records:
        log.warning("request trace: no tool events are received here, so there are no rows about them")
    return RequestTrace(
        [SINKS[name](settings) for name in settings.sinks],
        settings.capacity,
        ends=END in settings.records,
        payloads=PayloadCapture(settings.captured_headers) if PAYLOAD in settings.records else None,
    )
