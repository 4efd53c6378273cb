"""A profile from recorded steps of an engine."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import msgspec
import pytest

from dynamo.engines.mocker import MockerArgs, ProfileTiming
from dynamo.engines.mocker.profile import About
from dynamo.lab.profile.fit_profile import DecodeFit, PrefillTime, profile_from
from dynamo.lab.profile.fit_steps import ForwardPass, fit_steps, read_steps
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.forward_pass import ForwardPassMetrics, ScheduledRequestMetrics, StepTraceEvent, StepTraceRow

DECODE = DecodeFit(idle=6.0, per_request=0.3, per_token=0.002)
PREFILL = [PrefillTime(tokens, 10 + 0.05 * tokens) for tokens in (16, 8192)]
TRUE = ProfileTiming(profile_from(PREFILL, DECODE, 4096, 16, About(shared_ms=5.0)), MockerArgs())


def step(draw: random.Random) -> ForwardPass:
    tokens = round(2 ** draw.uniform(5, 12)) if draw.random() < 0.5 else 0
    requests = draw.randrange(1, 16) if not tokens or draw.random() < 0.5 else 0
    context = requests * draw.randrange(100, 4000)
    if tokens and requests:
        seconds = TRUE.mixed(tokens, requests, context)
    else:
        seconds = TRUE.prefill(tokens) if tokens else TRUE.decode(requests, context)
    scheduled = ScheduledRequestMetrics(
        num_prefill_requests=bool(tokens), sum_prefill_tokens=tokens, num_decode_requests=requests,
        sum_decode_kv_tokens=context,
    )  # fmt: skip
    return ForwardPass(wall_time=seconds * draw.uniform(0.97, 1.03), scheduled_requests=scheduled)


def test_the_times_behind_recorded_steps_are_found_and_how_well_is_said() -> None:
    draw = random.Random(3)
    found = fit_steps([step(draw) for _ in range(2000)], "m")
    timing = ProfileTiming(found.profile, MockerArgs())
    assert timing.prefill(600) == pytest.approx(TRUE.prefill(600), rel=0.05)
    assert timing.decode(8, 8 * 1000) == pytest.approx(TRUE.decode(8, 8 * 1000), rel=0.05)
    assert timing.mixed(600, 8, 8 * 1000) == pytest.approx(TRUE.mixed(600, 8, 8 * 1000), rel=0.05)
    assert found.profile.about.model == "m"
    assert found.errors.keys() == {"prefill", "decode", "mixed"}
    assert all(0 < error < 0.1 for error in found.errors.values())


def test_steps_are_read_line_by_line_and_idle_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    rows = [
        {"version": 1, "worker_id": "w", "dp_rank": 0, "wall_time": 0.0, "scheduled_requests": {}},
        {"version": 1, "wall_time": 0.02, "scheduled_requests": {"num_decode_requests": 2, "sum_decode_kv_tokens": 9}},
    ]
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    (read,) = read_steps(path)
    assert (read.milliseconds, read.kind) == (20.0, "decode")
    path.write_bytes(b'{"wall_time": "long"}\n')
    with pytest.raises(InvalidArgument, match=r"steps\.jsonl:1: "):
        list(read_steps(path))


def test_rows_of_workers_are_read_from_compressed_files(tmp_path: Path) -> None:
    scheduled = ScheduledRequestMetrics.of([], [4, 5])
    event = StepTraceEvent(fpm=ForwardPassMetrics(wall_time=0.02, scheduled_requests=scheduled))
    line = msgspec.json.encode(StepTraceRow(7, event)) + b"\n"
    path = tmp_path / "steps.jsonl.gz"
    path.write_bytes(gzip.compress(line) + gzip.compress(line))
    assert [(step.milliseconds, step.scheduled_requests) for step in read_steps(path)] == [(20.0, scheduled)] * 2
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidArgument, match=r"steps\.jsonl\.gz cannot be read after line "):
        list(read_steps(path))


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"version": 2, "wall_time": 0.1, "scheduled_requests": {}}\n')
    with pytest.raises(InvalidArgument, match="version 2 of forward pass metrics is unknown"):
        list(read_steps(path))


def test_too_few_kinds_of_steps_are_refused() -> None:
    draw = random.Random(3)
    decodes = [one for one in (step(draw) for _ in range(100)) if one.kind == "decode"]
    with pytest.raises(InvalidArgument, match="prompts of different lengths"):
        fit_steps(decodes)
