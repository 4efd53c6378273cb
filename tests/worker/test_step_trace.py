"""Recorded steps: which ones, in which files, and what happens when they cannot be written."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo.lab.profile.fit_steps import read_steps
from dynamo.protocols.forward_pass import QueuedRequestMetrics, ScheduledRequestMetrics, StepTraceRow, StepTraceSource
from dynamo.settings.worker import StepTraceSettings
from dynamo.worker.step_trace import Segments, StepTrace
from support.limits import full_disk
from support.waiting import until

WORKER = StepTraceSource("ns", "backend", "77")
IDLE = QueuedRequestMetrics()
LINE = b'{"n": 1}\n'


def settings(folder: Path, **options: Any) -> StepTraceSettings:
    return StepTraceSettings(enabled=True, output_path=str(folder / "fpm"), **options)


def rows(folder: Path) -> list[StepTraceRow]:
    files = sorted(folder.glob("fpm.77.*.jsonl.gz"))
    return [
        msgspec.json.decode(line, type=StepTraceRow)
        for file in files
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]


def decode_step(requests: int) -> ScheduledRequestMetrics:
    return ScheduledRequestMetrics.of([], [10] * requests)


def test_every_step_is_recorded_with_its_worker_and_its_number(tmp_path: Path) -> None:
    trace = StepTrace(settings(tmp_path, mode="full"), WORKER)
    for requests in range(1, 101):
        trace.record(requests % 2, requests / 1000, decode_step(requests), IDLE)
    trace.close()
    found = rows(tmp_path)
    assert [row.event.fpm.scheduled_requests.num_decode_requests for row in found] == list(range(1, 101))
    assert [row.event.fpm.counter_id for row in found] == [number for number in range(1, 51) for _ in (0, 1)]
    event = found[-1].event
    assert (event.schema, event.source, event.capture_mode) == ("dynamo.fpm.trace.v1", WORKER, "full")
    assert (event.fpm.worker_id, event.fpm.dp_rank, event.fpm.wall_time) == ("77", 0, 0.1)
    assert [step.milliseconds for step in read_steps(*tmp_path.iterdir())][-1] == 100.0


def test_sampled_steps_are_the_last_of_each_rank(tmp_path: Path) -> None:
    trace = StepTrace(settings(tmp_path, sample_interval_ms=3_600_000), WORKER)
    for requests in range(1, 10):
        for rank in (0, 1):
            trace.record(rank, 0.01, decode_step(requests), IDLE)
    trace.close()
    assert [(row.event.fpm.dp_rank, row.event.fpm.counter_id) for row in rows(tmp_path)] == [(0, 9), (1, 9)]


async def test_a_file_that_is_being_written_can_be_read(tmp_path: Path) -> None:
    trace = StepTrace(settings(tmp_path, mode="full"), WORKER)
    trace.record(0, 0.01, decode_step(1), IDLE)
    await until(lambda: bool(rows(tmp_path)))
    trace.record(0, 0.01, decode_step(2), IDLE)
    await until(lambda: len(rows(tmp_path)) == 2)
    trace.close()


def test_files_are_numbered_and_the_oldest_deleted(tmp_path: Path) -> None:
    files = Segments(str(tmp_path / "fpm.77"), 3 * len(LINE), 2)
    for count in (1, 6, 4):
        files.write([LINE] * count)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fpm.77.000002.jsonl.gz", "fpm.77.000003.jsonl.gz"]
    assert [gzip.decompress(file.read_bytes()) for file in sorted(tmp_path.iterdir())] == [LINE * 3, LINE * 2]
    files.write([3 * LINE[:-1] + LINE])
    assert gzip.decompress((tmp_path / "fpm.77.000004.jsonl.gz").read_bytes()) == 3 * LINE[:-1] + LINE


def test_a_full_disk_leaves_no_line_that_is_cut(tmp_path: Path) -> None:
    files = Segments(str(tmp_path / "fpm.77"), 1 << 20, 2)
    files.write([LINE])
    with full_disk(), pytest.raises(OSError, match="File too large"):
        files.write([LINE] * 100)
    assert gzip.decompress((tmp_path / "fpm.77.000000.jsonl.gz").read_bytes()) == LINE


@pytest.mark.parametrize(("place", "reason"), [("nowhere", "No such file or directory"), ("", "File too large")])
async def test_what_cannot_be_written_ends_the_recording_with_one_line(
    place: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = StepTrace(settings(tmp_path / place, mode="full"), WORKER)
    with full_disk(), caplog.at_level(logging.WARNING):
        trace.record(0, 0.01, decode_step(1), IDLE)
        await until(lambda: bool(caplog.messages))
        trace.record(0, 0.01, decode_step(1), IDLE)
        trace.close()
    assert caplog.messages == [f"forward pass metrics are no longer recorded: {tmp_path / place}/fpm.77: {reason}"]
