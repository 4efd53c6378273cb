"""Curves through measured times, and the file in which they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo.engines.mocker import MockerArgs, ProfileTiming, read_profile
from dynamo.engines.mocker.profile import About
from dynamo.lab.profile.fit_profile import (
    DecodeFit,
    DecodeTime,
    MixedTime,
    PrefillTime,
    fit_decode,
    profile_from,
    write_profile,
)

TRUE = DecodeFit(idle=6.0, per_request=0.3, per_token=0.002)
PREFILL = [PrefillTime(tokens, 10 + 0.05 * tokens) for tokens in (32, 256, 1024, 4096)]
SIZES = [(requests, context) for requests in (1, 4, 16) for context in (280.0, 2072.0)]


def measured(fit: DecodeFit) -> list[DecodeTime]:
    return [DecodeTime(requests, context, fit.milliseconds(requests, context)) for requests, context in SIZES]


def test_the_times_of_decode_steps_are_found_again() -> None:
    found = fit_decode(measured(TRUE))
    assert (found.idle, found.per_request, found.per_token) == pytest.approx((6.0, 0.3, 0.002))


def test_no_coefficient_is_below_zero() -> None:
    falling = [DecodeTime(requests, context, 10 - 0.1 * requests) for requests, context in SIZES]
    found = fit_decode(falling)
    assert found.per_request >= 0 <= found.per_token
    assert found.idle > 0


def test_a_written_profile_is_read_by_the_mocker(tmp_path: Path) -> None:
    file = tmp_path / "profile.npz"
    made = profile_from(PREFILL, TRUE, 4096, 16, About(model="m", shared_ms=4.0, frontend_ms=2.0))
    write_profile(made, file)
    read = read_profile(file)
    assert read == made
    timing = ProfileTiming(read, MockerArgs())
    assert 1000 * timing.prefill(512) == pytest.approx(10 + 0.05 * 512)
    step = TRUE.milliseconds(8, 1000)
    assert 1000 * timing.decode(8, 8 * 1000) == pytest.approx(step, rel=0.01)
    assert 1000 * timing.mixed(512, 8, 8 * 1000) == pytest.approx(10 + 0.05 * 512 + step - 4.0, rel=0.01)


def test_how_long_a_prompt_waited_is_what_its_own_step_and_the_way_do_not_explain() -> None:
    seen = MixedTime(tokens=256, requests=4, decode_ms=20.0, step_ms=30.0, ttft_ms=62.0)
    assert seen.waited_steps(2.0) == pytest.approx(1.5)
