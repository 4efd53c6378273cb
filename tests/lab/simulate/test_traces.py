"""Reading traces."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.lab.simulate.traces import FORMATS, read_mooncake, read_request_trace
from dynamo.lab.simulate.traffic import scaled
from dynamo.protocols.errors import InvalidArgument

ROW = {"timestamp": 1000, "input_length": 1000, "output_length": 20, "hash_ids": [1, 2]}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines))
    return path


def test_times_count_from_the_first_row_and_equal_ids_are_equal_tokens(tmp_path: Path) -> None:
    second = ROW | {"timestamp": 3500, "hash_ids": [1, 3]}
    one, other = read_mooncake(written(tmp_path, ROW, second))
    assert (one.at, other.at) == (0.0, 2.5)
    assert len(one.token_ids()) == len(other.token_ids()) == 1000
    assert one.token_ids()[:512] == other.token_ids()[:512]
    assert one.token_ids()[512:] != other.token_ids()[512:]


def test_prompts_without_ids_share_nothing(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 64, "output_length": 1}
    one, other = read_mooncake(written(tmp_path, row, row))
    assert one.token_ids() != other.token_ids()
    copies = list(scaled([one, other], 3))
    assert len({tuple(copy.token_ids()) for copy in copies}) == 6
    assert copies[0] == one


def test_a_compressed_trace_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(msgspec.json.encode(ROW)))
    assert [request.output_tokens for request in read_mooncake(path)] == [20]


def test_turns_need_no_time_of_their_own(tmp_path: Path) -> None:
    turn = {"session_id": 5, "delay": 250, "input_length": 10, "output_length": 1}
    first, second = read_mooncake(written(tmp_path, turn | {"timestamp": 7}, turn))
    assert (first.at, second.at, second.session, second.delay) == (0.0, None, "5", 0.25)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        ({"timestamp": 0, "input_length": "7", "output_length": 1}, "input_length"),
        ({"timestamp": 0, "input_length": -1, "output_length": 1}, "input_length"),
        ({"timestamp": 5000, "input_length": 0, "output_length": 1}, "at least 1"),
        ({"input_length": 1, "output_length": 1}, "needs a timestamp"),
        (ROW | {"hash_ids": [1, 2, 3]}, "--trace-block-size"),
        (ROW | {"colour": "red"}, "unknown field `colour`"),
        (ROW | {"wait_for": []}, "unknown field `wait_for`; agentic traces are not read here"),
        (ROW | {"timestamp": 0}, "timestamp 0 is before .* of an earlier row: sort the trace"),
        ({"schema": "dynamo.request.trace.v1"}, "unknown field `schema`; this looks like --trace-format dynamo"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(InvalidArgument, match=f"trace.jsonl:2: .*{words}"):
        list(read_mooncake(written(tmp_path, ROW, line)))


def test_a_request_trace_gives_its_requests_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    def end(received: float, **fields: object) -> dict[str, object]:
        replay = {"trace_block_size": 16, "input_length": 33, "input_sequence_hashes": [7, 1 << 63]}
        request = {"request_received_ms": received, "output_tokens": 5, "replay": replay} | fields
        return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}

    other = {"schema": "dynamo.request.trace.v1", "event_type": "tool_start"}
    path = written(tmp_path, end(1_700_000_002_000), other, end(1_700_000_001_000), end(9, output_tokens=0))
    found = list(read_request_trace(path))
    assert [request.at for request in found] == [0.0, 1.0]
    assert len(found[0].token_ids()) == 33


def test_another_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"schema 'x', expected 'dynamo.request.trace.v1'"):
        list(read_request_trace(written(tmp_path, {"schema": "x", "event_type": "request_end"})))


@pytest.mark.parametrize("name", FORMATS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(name: str, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace"
    for content in (data, b"\x1f\x8b" + data):
        path.write_bytes(content)
        with contextlib.suppress(InvalidArgument):
            list(FORMATS[name](path, 512))
