"""How far the workloads of a component are; from their objects alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

Object = Mapping[str, Any]


class WorkloadProgress(Struct, frozen=True):
    """Counted in replicas: one of several nodes counts when all its pods do."""

    wanted: int = 0
    made: int = 0
    updated: int = 0
    ready: int = 0
    available: int = 0
    observed: bool = True
    """Their controllers have seen what was asked last."""

    @property
    def is_complete(self) -> bool:
        return self.observed and self.updated >= self.wanted and self.available >= self.wanted == self.made

    @property
    def serves(self) -> bool:
        """As many as are wanted can take requests."""
        return self.observed and self.updated >= self.wanted and self.available >= self.wanted


def progress_of(workloads: Iterable[Object]) -> WorkloadProgress:
    total = WorkloadProgress()
    for each in workloads:
        one = _of_stateful_set(each) if each["kind"] == "StatefulSet" else _of_deployment(each)
        total = WorkloadProgress(
            total.wanted + one.wanted, total.made + one.made, total.updated + one.updated, total.ready + one.ready,
            total.available + one.available, total.observed and one.observed,
        )  # fmt: skip
    return total


def _of_deployment(found: Object) -> WorkloadProgress:
    status = found.get("status") or {}
    return WorkloadProgress(
        wanted=(found.get("spec") or {}).get("replicas", 1),
        made=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        observed=_observed(found),
    )


def _of_stateful_set(found: Object) -> WorkloadProgress:
    status, nodes = found.get("status") or {}, (found.get("spec") or {}).get("replicas", 1)

    def whole(key: str) -> int:
        return int(status.get(key, 0) >= nodes)

    return WorkloadProgress(
        1, int(status.get("replicas", 0) > 0), whole("updatedReplicas"), whole("readyReplicas"),
        whole("readyReplicas"), _observed(found),
    )  # fmt: skip


def _observed(found: Object) -> bool:
    observed = (found.get("status") or {}).get("observedGeneration", 0)
    return bool(observed >= found["metadata"].get("generation", 1))
