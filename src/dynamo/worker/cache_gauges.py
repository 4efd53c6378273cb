"""The KV blocks of a worker and how many are in use, under ai-dynamo's names."""

from __future__ import annotations

from dynamo.engines.base import RankLoad
from dynamo.runtime.metrics import Labels, Metric, MetricFamily, families


class CacheGauges:
    """Of the last report of each rank."""

    def __init__(self) -> None:
        self._loads: dict[int, RankLoad] = {}

    def reported(self, load: RankLoad) -> None:
        self._loads[load.dp_rank] = load

    def families(self, labels: Labels) -> list[MetricFamily]:
        return families(
            _METRICS, [({**labels, "dp_rank": str(rank)}, load) for rank, load in sorted(self._loads.items())]
        )


def _used(load: RankLoad) -> float | None:
    if not load.kv_total_blocks:
        return None
    return max(load.kv_used_blocks or 0, load.active_decode_blocks or 0) / load.kv_total_blocks


_METRICS: tuple[Metric[RankLoad], ...] = (
    Metric("gauge", "dynamo_component_total_blocks", "KV blocks of a rank", lambda load: load.kv_total_blocks or None),
    Metric("gauge", "dynamo_component_gpu_cache_usage_percent", "Share of them in use, 0 to 1", _used),
)
