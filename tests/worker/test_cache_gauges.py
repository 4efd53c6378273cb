"""The KV blocks of a worker in its metrics."""

from __future__ import annotations

from dynamo.engines.base import RankLoad
from dynamo.worker.serve import CacheGauges


def test_the_last_report_of_each_rank_is_shown() -> None:
    gauges = CacheGauges()
    gauges.report(RankLoad(dp_rank=1, kv_used_blocks=1, kv_total_blocks=8))
    gauges.report(RankLoad(dp_rank=0, active_decode_blocks=3, kv_used_blocks=2, kv_total_blocks=10))
    gauges.report(RankLoad(dp_rank=1, kv_used_blocks=4, kv_total_blocks=8))
    gauges.report(RankLoad(dp_rank=2))
    samples = [(each.name, each.labels["dp_rank"], each.value) for one in gauges.families({}) for each in one.samples]
    assert samples == [
        ("dynamo_component_total_blocks", "0", 10.0),
        ("dynamo_component_total_blocks", "1", 8.0),
        ("dynamo_component_gpu_cache_usage_percent", "0", 0.3),
        ("dynamo_component_gpu_cache_usage_percent", "1", 0.5),
    ]


def test_guessed_tokens_are_counted_where_some_are_guessed() -> None:
    gauges = CacheGauges()
    gauges.report(RankLoad(dp_rank=0))
    gauges.report(RankLoad(dp_rank=1, draft_tokens=8, accepted_tokens=0))
    samples = [(each.name, each.labels["dp_rank"], each.value) for one in gauges.families({}) for each in one.samples]
    assert samples == [
        ("dynamo_component_draft_tokens_total", "1", 8.0),
        ("dynamo_component_accepted_draft_tokens_total", "1", 0.0),
    ]
