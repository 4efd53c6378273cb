"""Why a worker was chosen. A decision keeps its inputs; the explanation is computed only when asked for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from dynamo.handoff.router.rule import HandoffVerdict
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.choose import Candidate, Choice

MOST_CANDIDATES = 16
"""Candidates in an explanation, the cheapest first."""


class Decision(Struct, kw_only=True):
    request_id: str
    time: float
    """Seconds since 1970."""
    mode: str
    worker_id: int
    dp_rank: int | None
    pinned: bool
    considered: int
    in_flight: int = 0
    """This router's requests in flight at the worker."""
    waited: float = 0.0
    """Seconds in the router's queue."""
    choice: Choice | None = None
    """Set by KV-aware routers."""
    session: str = ""
    """The id of the session that the request is a turn of, if the client named it."""
    session_worker: WorkerRank | None = None
    """Where that session was bound before."""
    handoff: HandoffVerdict | None = None
    """Whether another worker computes the prompt; set for decode workers."""
    prefill_worker_id: int | None = None
    """That other worker."""

    @property
    def hit_rate(self) -> float | None:
        """The share of the prompt expected in the worker's cache; None where caches are not looked at."""
        if self.choice is None:
            return None
        return self.choice.cached_blocks / self.choice.prompt_blocks if self.choice.prompt_blocks else 0.0

    def reasons(self, most: int = MOST_CANDIDATES) -> dict[str, Any]:
        reasons: dict[str, Any] = {
            "mode": self.mode,
            "worker_id": self.worker_id,
            "dp_rank": self.dp_rank or 0,
            "pinned": self.pinned,
            "considered": self.considered,
        }
        if self.session:
            reasons["session"] = {"id": self.session}
            if bound := self.session_worker:
                reasons["session"] |= {"worker_id": bound.worker_id, "dp_rank": bound.dp_rank}
        if self.handoff is not None:
            reasons["prefill"] = {"worker_id": self.prefill_worker_id, **self.handoff.notes()}
        choice = self.choice
        if choice is None:
            return reasons | {"in_flight": self.in_flight}
        cheapest = sorted(range(len(choice.costs)), key=choice.costs.__getitem__)[:most]
        return reasons | {
            "waited_ms": self.waited * 1000,
            "prompt_tokens": choice.prompt_tokens,
            "prompt_blocks": choice.prompt_blocks,
            "rule": choice.rule or "built-in",
            "overlap_weight": choice.config.overlap_weight,
            "temperature": choice.config.temperature,
            "draw": choice.draw,
            "chosen": _candidate(choice.chosen),
            "passed_over": choice.passed_over,
            "candidates": [_candidate(choice.candidate(at)) for at in cheapest],
        }

    def record(self, model: str, most: int = MOST_CANDIDATES) -> dict[str, Any]:
        return {"request_id": self.request_id, "time": self.time, "model": model, **self.reasons(most)}

    def __str__(self) -> str:
        where = f"worker {worker_name(self.worker_id)} rank {self.dp_rank or 0}"
        if self.session:
            where += f" for session {self.session[:64]!r}"
        if self.choice is None:
            return f"{where} by {self.mode}, of {self.considered}, {self.in_flight} in flight there"
        chosen = self.choice.chosen
        why = (
            f"cost {chosen.cost:.1f} = work {chosen.work:.1f} + waiting {chosen.waiting:.1f} "
            f"+ crowding {chosen.crowding:.1f} + spreading {chosen.spreading:.1f}"
        )
        cached = f"{chosen.cached_blocks:g} of {self.choice.prompt_blocks} blocks cached"
        passed = f"; {self.choice.passed_over}" if self.choice.passed_over else ""
        return f"{where} of {self.considered}: {cached}, {why}{passed}"


def _candidate(candidate: Candidate) -> dict[str, Any]:
    rest = structs.asdict(candidate)
    worker, overlap = rest.pop("worker"), rest.pop("overlap")
    return {
        "worker_id": worker.worker_id,
        "dp_rank": worker.dp_rank,
        "overlap_blocks": overlap.device,
        "host_blocks": overlap.host,
        "disk_blocks": overlap.disk,
        "external_blocks": overlap.external,
        **rest,
    }
