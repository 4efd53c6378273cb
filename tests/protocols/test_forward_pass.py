"""Forward pass metrics, as other programs read them."""

from __future__ import annotations

import msgspec
import pytest

from dynamo.protocols.forward_pass import (
    ForwardPassMetrics,
    QueuedRequestMetrics,
    ScheduledPrompt,
    ScheduledRequestMetrics,
)


def test_requests_are_counted_summed_and_their_variance_is_the_populations() -> None:
    scheduled = ScheduledRequestMetrics.of([ScheduledPrompt(100, 40, 60), ScheduledPrompt(300, 300, 0)], [10, 20, 30])
    assert (scheduled.num_prefill_requests, scheduled.sum_prefill_tokens, scheduled.sum_prefill_kv_tokens) == (
        2,
        340,
        60,
    )
    assert scheduled.var_prefill_length == 100.0**2
    assert (scheduled.num_decode_requests, scheduled.sum_decode_kv_tokens) == (3, 60)
    assert scheduled.var_decode_kv_tokens == pytest.approx(200 / 3)
    queued = QueuedRequestMetrics.of([50], [])
    assert queued == QueuedRequestMetrics(num_prefill_requests=1, sum_prefill_tokens=50)


def test_a_step_has_ai_dynamos_names_in_its_order() -> None:
    step = msgspec.json.decode(msgspec.json.encode(ForwardPassMetrics()))
    assert list(step) == [
        "version", "worker_id", "dp_rank", "counter_id", "wall_time", "scheduled_requests", "queued_requests",
    ]  # fmt: skip
    queued = [
        "num_prefill_requests", "sum_prefill_tokens", "var_prefill_length", "num_decode_requests",
        "sum_decode_kv_tokens", "var_decode_kv_tokens",
    ]  # fmt: skip
    assert list(step["queued_requests"]) == queued
    assert list(step["scheduled_requests"]) == [*queued[:3], "sum_prefill_kv_tokens", *queued[3:]]
    assert step["version"] == 1
