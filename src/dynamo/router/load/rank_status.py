"""What a KV-aware router knows of each rank, for people."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.kv.index.index import Index
from dynamo.kv.messages import Tier, WorkerRank
from dynamo.router.load.reported import ReportedLoads
from dynamo.router.load_book import Loads
from dynamo.router.placement import RankStatus, TierStatus

SLOWER = (Tier.Host, Tier.Disk, Tier.External)


def kv_status(
    workers: Sequence[WorkerRank], loads: Loads, index: Index | None, reported: ReportedLoads | None
) -> list[RankStatus]:
    """`index` None: what is cached is not known."""
    columns = zip(workers, loads.requests, loads.active_blocks, loads.prefill_tokens, strict=True)
    return [
        RankStatus(
            worker,
            int(requests),
            int(blocks),
            int(tokens),
            None if index is None else index.blocks(worker),
            _tiers(worker, index, reported) if index is not None and (index.has_tiers or reported) else (),
        )
        for worker, requests, blocks, tokens in columns
    ]


def _tiers(worker: WorkerRank, index: Index, reported: ReportedLoads | None) -> list[TierStatus]:
    reports = {report.tier: report for report in reported.get(worker).tiers} if reported else {}
    held = [(tier, index.blocks(worker, tier)) for tier in SLOWER]
    return [TierStatus(tier, blocks, reports.get(tier)) for tier, blocks in held if blocks or tier in reports]
