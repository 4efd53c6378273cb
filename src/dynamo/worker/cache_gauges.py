"""The KV blocks of a worker and how many are in use, under ai-dynamo's names."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dynamo.engines.base import RankLoad


class CacheGauges:
    """Of the last report of each rank."""

    def __init__(self) -> None:
        self._loads: dict[int, RankLoad] = {}

    def reported(self, load: RankLoad) -> None:
        self._loads[load.dp_rank] = load

    def collect(self) -> Iterator[Metric]:
        total = GaugeMetricFamily("dynamo_component_total_blocks", "KV blocks of a rank", labels=["dp_rank"])
        used = GaugeMetricFamily(
            "dynamo_component_gpu_cache_usage_percent", "Share of them in use, 0 to 1", labels=["dp_rank"]
        )
        for rank, load in sorted(self._loads.items()):
            if load.kv_total_blocks:
                total.add_metric([str(rank)], load.kv_total_blocks)
                blocks = max(load.kv_used_blocks or 0, load.active_decode_blocks or 0)
                used.add_metric([str(rank)], blocks / load.kv_total_blocks)
        yield from (total, used)
