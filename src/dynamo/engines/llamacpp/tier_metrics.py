"""The tiers in Prometheus' form, with ai-dynamo's names where it has one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dynamo.kv.messages import Tier
from dynamo.kv.tiers import TierStore

_COUNTERS = {
    "restored_tokens": "tokens restored from the tier instead of computed",
    "restored_bytes": "bytes restored from the tier",
    "restore_seconds": "time spent on restoring",
    "saved_seconds": "time that computing the restored tokens would have taken",
    "stored_tokens": "tokens stored in the tier",
    "stored_bytes": "bytes stored in the tier",
    "store_seconds": "time that requests waited for storing",
    "hits": "segments that were looked for and found",
    "misses": "segments that were looked for and not found",
    "failures": "segments that were damaged or could not be read, written or restored",
}


class TierMetrics:
    def __init__(self, store: TierStore | None, block_size: int) -> None:
        self._store = store
        self._block_size = block_size

    def collect(self) -> Iterator[Metric]:
        store = self._store
        if store is None:
            return
        for name, about in _COUNTERS.items():
            counter = CounterMetricFamily(f"dynamo_kv_tier_{name}", about, labels=["tier"])
            for tier, costs in store.costs.items():
                counter.add_metric([tier.value], getattr(costs, name))
            yield counter
        held = GaugeMetricFamily("dynamo_kv_tier_bytes", "bytes held by the tier", labels=["tier"])
        limit = GaugeMetricFamily("dynamo_kv_tier_limit_bytes", "bytes the tier may hold", labels=["tier"])
        used = GaugeMetricFamily("dynamo_kv_tier_worthwhile", "1: restoring is faster than computing", labels=["tier"])
        for tier, costs in store.costs.items():
            where = store.memory if tier is Tier.Host else store.folder
            if where is not None:
                held.add_metric([tier.value], where.used)
                limit.add_metric([tier.value], where.limit)
            used.add_metric([tier.value], float(costs.worthwhile(store.prefill)))
        yield from (held, limit, used)
        yield from self._kvbm(store)

    def _kvbm(self, store: TierStore) -> Iterator[Metric]:
        matched = sum(costs.restored_tokens for costs in store.costs.values())
        yield CounterMetricFamily("kvbm_matched_tokens", "tokens restored from any tier", value=matched)
        for tier, offloaded, onboarded in ((Tier.Host, "d2h", "h2d"), (Tier.Disk, "h2d", "d2d")):
            if costs := store.costs.get(tier):
                stored, restored = costs.stored_tokens // self._block_size, costs.restored_tokens // self._block_size
                yield CounterMetricFamily(f"kvbm_offload_blocks_{offloaded}", "blocks stored", value=stored)
                yield CounterMetricFamily(f"kvbm_onboard_blocks_{onboarded}", "blocks restored", value=restored)
                rate = costs.hits / max(1, costs.hits + costs.misses)
                yield GaugeMetricFamily(f"kvbm_{tier.value}_cache_hit_rate", "found of those looked for", value=rate)
