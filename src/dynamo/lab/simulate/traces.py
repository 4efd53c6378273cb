"""Reads traces: Mooncake's rows, Azure's, agents' sessions, and what a frontend writes (`dynamo.request.trace.v1`)."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from dynamo.lab.simulate.agents import read_agents
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.process.files import open_lines
from dynamo.protocols.errors import InvalidArgument

Milliseconds = Annotated[float, Meta(ge=0, le=1e13)]
Tokens = Annotated[int, Meta(ge=0, le=1 << 31)]
Row = TypeVar("Row", "MooncakeRow", "TraceRow")
SCHEMA = "dynamo.request.trace.v1"


class MooncakeRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timestamp: Milliseconds | None = None
    created_time: Milliseconds | None = None
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...] = ()
    session_id: str | int | None = None
    delay: Milliseconds | None = None
    delay_ms: Milliseconds | None = None
    priority: int = 0
    strict_priority: int = 0


class ReplayFields(Struct, frozen=True, kw_only=True):
    trace_block_size: Annotated[int, Meta(ge=1)]
    input_length: Tokens
    input_sequence_hashes: tuple[int, ...] = ()


class TracedRequest(Struct, frozen=True, kw_only=True):
    model: str = ""
    output_tokens: Tokens | None = None
    request_received_ms: Milliseconds
    replay: ReplayFields | None = None


class TraceRow(Struct, frozen=True, kw_only=True):
    """One line of a request trace; lines of other events are skipped."""

    schema: str
    event_type: str
    request: TracedRequest | None = None


def read_mooncake(path: Path, block_size: int = 512) -> Iterator[SimulatedRequest]:
    """Rows in the order of the file; the first one's time is the start."""
    first: float | None = None
    latest = 0.0
    for label, row in _rows(path, MooncakeRow):
        time = row.created_time if row.timestamp is None else row.timestamp
        delay = (row.delay if row.delay_ms is None else row.delay_ms) or 0.0
        session = "" if row.session_id is None else str(row.session_id)
        if time is None and not session:
            raise InvalidArgument(f"{label}: a row without a session_id needs a timestamp")
        if time is not None:
            first = time if first is None else first
            if time < latest:
                raise InvalidArgument(
                    f"{label}: timestamp {time:g} is before {latest:g} of an earlier row: sort the trace"
                )
            latest = time
        if row.input_length < 1 or row.output_length < 1:
            raise InvalidArgument(f"{label}: input_length and output_length must be at least 1")
        if len(row.hash_ids) > -(-row.input_length // block_size):
            raise InvalidArgument(
                f"{label}: {len(row.hash_ids)} hash_ids of {block_size} tokens are more than input_length "
                f"{row.input_length}; see --trace-block-size"
            )
        yield SimulatedRequest(
            at=None if time is None or first is None else max(0.0, time - first) / 1000,
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            block_ids=row.hash_ids,
            block_size=block_size,
            session=session,
            delay=delay / 1000,
            priority=row.priority,
            strict_priority=row.strict_priority,
            label=label,
        )


def read_request_trace(path: Path) -> Iterator[SimulatedRequest]:
    """The `request_end` rows, sorted by when the requests arrived."""
    found: list[tuple[float, SimulatedRequest]] = []
    for label, row in _rows(path, TraceRow):
        if row.schema != SCHEMA:
            raise InvalidArgument(f"{label}: schema '{row.schema}', expected '{SCHEMA}'")
        request = row.request
        if row.event_type != "request_end" or request is None or request.replay is None:
            continue
        replay = request.replay
        if not request.output_tokens or not replay.input_length:
            continue  # refused or cancelled before its first token
        found.append(
            (
                request.request_received_ms / 1000,
                SimulatedRequest(
                    at=0.0,
                    input_tokens=replay.input_length,
                    output_tokens=request.output_tokens,
                    block_ids=replay.input_sequence_hashes,
                    block_size=replay.trace_block_size,
                    model=request.model,
                    label=label,
                ),
            )
        )
    found.sort(key=lambda pair: pair[0])
    for received, traced in found:
        yield msgspec.structs.replace(traced, at=received - found[0][0])


def read_azure(path: Path, block_size: int = 64) -> Iterator[SimulatedRequest]:
    """Azure's CSV of arrivals and lengths; no prompt has anything in common with another."""
    first: float | None = None
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                label = f"{path}:{number}"
                try:
                    # Times have seven digits after the point.
                    time = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                    tokens, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
                except (KeyError, TypeError, ValueError) as error:
                    raise InvalidArgument(f"{label}: not a row of Azure's trace: {error}") from None
                first = time if first is None else first
                yield SimulatedRequest(
                    at=time - first,
                    input_tokens=max(1, tokens),
                    output_tokens=max(1, answer),
                    block_size=block_size,
                    label=label,
                )
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"cannot read the trace {path}: {error}") from None


FORMATS: dict[str, Callable[[Path, int], Iterator[SimulatedRequest]]] = {
    "mooncake": read_mooncake,
    "dynamo": lambda path, _: read_request_trace(path),
    "azure": read_azure,
    "agents": lambda path, _: read_agents(path),
}


def format_of(path: Path) -> str:
    """The format of a trace, by its name or its first line."""
    if path.is_dir() or path.suffix == ".json":
        return "agents"
    if path.suffix == ".csv":
        return "azure"
    try:
        with open_lines(path) as lines:
            return "dynamo" if SCHEMA.encode() in next(iter(lines), b"") else "mooncake"
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgument(f"cannot read the trace {path}: {error}") from None


def _rows(path: Path, kind: type[Row]) -> Iterator[tuple[str, Row]]:
    """Each line with its place. A line that does not fit is refused by its number; a last one cut short is too."""
    decode = msgspec.json.Decoder(kind).decode
    try:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                label = f"{path}:{number}"
                try:
                    yield label, decode(line)
                except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    raise InvalidArgument(f"{label}: {error}{_hint(line, kind)}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgument(f"cannot read the trace {path}: {error}") from None


def _hint(line: bytes, kind: type[Row]) -> str:
    """What a row of the other format, or of one that is not read here, looks like."""
    if kind is MooncakeRow and SCHEMA.encode() in line:
        return "; this looks like --trace-format dynamo"
    if kind is TraceRow and b'"input_length"' in line and b'"schema"' not in line:
        return "; this looks like --trace-format mooncake"
    if kind is MooncakeRow and any(name in line for name in (b'"wait_for"', b'"branches"', b'"prefix_reset"')):
        return "; agentic traces are not read here"
    return ""
