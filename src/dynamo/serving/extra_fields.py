"""The `nvext` of an answer: the facts about the request that the client named in `nvext.extra_fields`."""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter
from typing import Any

from msgspec import structs

from dynamo.protocols.worker_name import worker_name
from dynamo.router.decision import Decision
from dynamo.router.delivery.history import DeliveryHistory
from dynamo.serving.timing import timing_parts


def extra_fields(
    names: Collection[str],
    decisions: list[Decision],
    history: DeliveryHistory | None,
    received: float,
    began: float,
    first_output: float | None,
    stop_reason: str | int | None,
) -> dict[str, Any]:
    """The named facts about a request whose answer is complete.

    `received` and `began` are the moment of its arrival, by `time.time` and by `perf_counter`. `first_output` is by
    `perf_counter`. `history` is that of the first delivery.
    """
    values: dict[str, Any] = {}
    if "worker_id" in names and decisions:
        values["worker_id"] = _worker(decisions[0])
    if "worker_name" in names and decisions:
        first = decisions[0]
        prefill = first.worker_id if first.prefill_worker_id is None else first.prefill_worker_id
        values["worker_name"] = {"prefill": worker_name(prefill), "decode": worker_name(first.worker_id)}
    if "routing" in names:
        values["routing"] = [decision.reasons() for decision in decisions]
    if "timing" in names:
        values["timing"] = _timing(decisions, history, received, began, first_output)
    if "stop_reason" in names:
        values["stop_reason"] = stop_reason
    return values


def _timing(
    decisions: list[Decision],
    history: DeliveryHistory | None,
    received: float,
    began: float,
    first_output: float | None,
) -> dict[str, Any]:
    now = perf_counter()
    timing: dict[str, Any] = {"request_received_ms": received * 1000, "total_time_ms": (now - began) * 1000}
    if history is not None:
        timing["parts"] = structs.asdict(timing_parts(began, now, history))
    if first_output is not None:
        timing["ttft_ms"] = (first_output - began) * 1000
    hit_rate = next((decision.hit_rate for decision in decisions), None)
    if hit_rate is not None:
        timing["kv_hit_rate"] = hit_rate
    return timing


def _worker(decision: Decision) -> dict[str, int]:
    """Which worker computes the prompt and which the answer; a rank is known only where the router chose one."""
    if decision.prefill_worker_id is not None:
        return {"prefill_worker_id": decision.prefill_worker_id, "decode_worker_id": decision.worker_id}
    worker = {"prefill_worker_id": decision.worker_id, "decode_worker_id": decision.worker_id}
    if decision.dp_rank is not None:
        worker |= {"prefill_dp_rank": decision.dp_rank, "decode_dp_rank": decision.dp_rank}
    return worker
