"""The `nvext` of an answer: the facts about the request that the client named in `nvext.extra_fields`."""

from __future__ import annotations

import time
from typing import Any

from dynamo.protocols.openai_fields import NvExt
from dynamo.router.decision import Decision
from dynamo.serving.generation import Generation


class ExtraFields:
    def __init__(self, nvext: NvExt | None, generation: Generation) -> None:
        self._names = frozenset((nvext and nvext.extra_fields) or ())
        self._generation = generation
        self._received = time.time()

    def values(self, stop_reason: str | int | None) -> dict[str, Any] | None:
        """The facts, to be read when the answer is complete; None if the client named none."""
        if not self._names:
            return None
        values: dict[str, Any] = {}
        decisions = self._generation.decisions
        if "worker_id" in self._names and decisions:
            values["worker_id"] = _worker(decisions[0])
        if "routing" in self._names:
            values["routing"] = [decision.reasons() for decision in decisions]
        if "timing" in self._names:
            values["timing"] = self._timing(decisions)
        if "stop_reason" in self._names:
            values["stop_reason"] = stop_reason
        return values

    def _timing(self, decisions: list[Decision]) -> dict[str, float]:
        timing = {
            "request_received_ms": self._received * 1000,
            "total_time_ms": (time.time() - self._received) * 1000,
        }
        first = self._generation.first_output_time
        if first is not None:
            timing["ttft_ms"] = max(0.0, first - self._received) * 1000
        hit_rate = next((decision.hit_rate for decision in decisions), None)
        if hit_rate is not None:
            timing["kv_hit_rate"] = hit_rate
        return timing


def _worker(decision: Decision) -> dict[str, int]:
    """One worker computes the prompt and the answer; its rank is known only where the router chose one."""
    worker = {"prefill_worker_id": decision.worker_id, "decode_worker_id": decision.worker_id}
    if decision.dp_rank is not None:
        worker |= {"prefill_dp_rank": decision.dp_rank, "decode_dp_rank": decision.dp_rank}
    return worker
