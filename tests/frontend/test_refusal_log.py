"""A flood of refusals does not fill the log."""

from __future__ import annotations

import logging

import pytest

from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.running import RejectionLog, RunningRequests


def test_one_refusal_a_second_is_logged_and_the_next_line_says_how_many_were_not() -> None:
    now = 0.0
    refusals = RejectionLog(lambda: now)
    assert [refusals.left_out() for _ in range(4)] == [0, None, None, None]
    now = 1.0
    assert [refusals.left_out() for _ in range(2)] == [3, None]


@pytest.mark.parametrize(
    ("status", "level", "lines"), [(429, logging.INFO, 1), (429, logging.DEBUG, 3), (200, logging.INFO, 3)]
)
def test_refusals_that_are_left_out_are_logged_at_debug_level(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, status: int, level: int, lines: int
) -> None:
    caplog.set_level(level, logger="dynamo.frontend.measure.request_record")
    requests = RunningRequests(FrontendMetrics("dynamo_frontend"))
    monkeypatch.setattr(requests, "_refusals", RejectionLog(lambda: 0.0))
    for _ in range(3):
        requests.end(requests.begin("POST", "/v1/chat/completions", "id"), status)
    assert caplog.text.count(f" {status} ") == lines
