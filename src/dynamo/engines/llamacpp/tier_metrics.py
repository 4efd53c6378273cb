"""The tiers in Prometheus' form, with ai-dynamo's names where it has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import prometheus_client
from msgspec import Struct

from dynamo.kv.messages import Tier
from dynamo.kv.tiers import TierCosts, TierStore
from dynamo.runtime.exposition import prometheus_metrics
from dynamo.runtime.metrics import Metric, MetricFamily, families


class TierMetrics:
    def __init__(self, store: TierStore | None, block_size: int) -> None:
        self._store = store
        self._block_size = block_size

    def collect(self) -> Iterable[prometheus_client.Metric]:
        return prometheus_metrics(self._families(self._store)) if self._store is not None else ()

    def _families(self, store: TierStore) -> Iterator[MetricFamily]:
        tiers = {tier: _TierState(tier, store, self._block_size) for tier in store.costs}
        yield from families(_METRICS, [({"tier": tier.value}, one) for tier, one in tiers.items()], "dynamo_kv_tier_")
        yield _MATCHED.family([({}, store)])
        for tier, metrics in _KVBM.items():
            if tier in tiers:
                yield from families(metrics, [({}, tiers[tier])])


class _TierState(Struct, frozen=True):
    tier: Tier
    store: TierStore
    block_size: int

    @property
    def costs(self) -> TierCosts:
        return self.store.costs[self.tier]

    @property
    def hit_rate(self) -> float:
        return self.costs.hits / max(1, self.costs.hits + self.costs.misses)

    @property
    def stored_blocks(self) -> int:
        return self.costs.stored_tokens // self.block_size

    @property
    def restored_blocks(self) -> int:
        return self.costs.restored_tokens // self.block_size


_METRICS: tuple[Metric[_TierState], ...] = (
    Metric("counter", "restored_tokens_total", "tokens restored from the tier instead of computed",
        lambda one: one.costs.restored_tokens),
    Metric("counter", "restored_bytes_total", "bytes restored from the tier", lambda one: one.costs.restored_bytes),
    Metric("counter", "restore_seconds_total", "time spent on restoring", lambda one: one.costs.restore_seconds),
    Metric("counter", "saved_seconds_total", "time that computing the restored tokens would have taken",
        lambda one: one.costs.saved_seconds),
    Metric("counter", "stored_tokens_total", "tokens stored in the tier", lambda one: one.costs.stored_tokens),
    Metric("counter", "stored_bytes_total", "bytes stored in the tier", lambda one: one.costs.stored_bytes),
    Metric("counter", "store_seconds_total", "time that requests waited for storing",
        lambda one: one.costs.store_seconds),
    Metric("counter", "hits_total", "segments that were looked for and found", lambda one: one.costs.hits),
    Metric("counter", "misses_total", "segments that were looked for and not found", lambda one: one.costs.misses),
    Metric("counter", "failures_total",
        "segments that were damaged or could not be read, written or restored", lambda one: one.costs.failures),
    Metric("gauge", "bytes", "bytes held by the tier", lambda one: one.store.held[one.tier].used),
    Metric("gauge", "limit_bytes", "bytes the tier may hold", lambda one: one.store.held[one.tier].limit),
    Metric("gauge", "worthwhile", "1: restoring is faster than computing",
        lambda one: one.costs.worthwhile(one.store.prefill)),
)  # fmt: skip
_MATCHED: Metric[TierStore] = Metric("counter", "kvbm_matched_tokens_total", "tokens restored from any tier",
    lambda store: sum(costs.restored_tokens for costs in store.costs.values()))  # fmt: skip
_KVBM: dict[Tier, tuple[Metric[_TierState], ...]] = {
    Tier.Host: (
        Metric("counter", "kvbm_offload_blocks_d2h_total", "blocks stored", lambda one: one.stored_blocks),
        Metric("counter", "kvbm_onboard_blocks_h2d_total", "blocks restored", lambda one: one.restored_blocks),
        Metric("gauge", "kvbm_host_cache_hit_rate", "found of those looked for", lambda one: one.hit_rate),
    ),
    Tier.Disk: (
        Metric("counter", "kvbm_offload_blocks_h2d_total", "blocks stored", lambda one: one.stored_blocks),
        Metric("counter", "kvbm_onboard_blocks_d2d_total", "blocks restored", lambda one: one.restored_blocks),
        Metric("gauge", "kvbm_disk_cache_hit_rate", "found of those looked for", lambda one: one.hit_rate),
    ),
}
