"""The largest cached prefixes of all models: found anew every few seconds, and only while a viewer asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter, thread_time

from dynamo.frontend.fleet import Document
from dynamo.kv.index.prefixes import CachedPrefix, PrefixScan
from dynamo.kv.messages import Tier
from dynamo.router import Router
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel

MOST_PREFIXES = 40
"""Prefixes shown of each model, role and tier."""
MOST_WORKERS = 8
"""Named beside a prefix; all are counted."""
SLICE_SECONDS = 0.001
"""The scan pauses after this time, so that requests go on."""
PAUSE_SECONDS = 0.01
"""How long the scan pauses."""
INTERVAL_SECONDS = 3.0
LONGEST_INTERVAL_SECONDS = 60.0
SHARE = 0.005
"""The share of a core that scans may take: after a long scan the next one comes later."""


class PrefixTable:
    def __init__(self, models: Models) -> None:
        self.rows: Document = {}
        self.seconds = 0.0
        """Processor time spent so far."""
        self._models = models
        self._scanning: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._scanning is None:
            self._scanning = asyncio.create_task(self._scan_on())

    def stop(self) -> None:
        if self._scanning is not None:
            self._scanning.cancel()
            self._scanning = None
        self.rows = {}

    async def _scan_on(self) -> None:
        while True:
            rows: Document = {}
            before = self.seconds
            for model, role, router in _routers(self._models.served()):
                for prefix in await in_slices(router.prefixes(MOST_PREFIXES), self._spent):
                    place = f"{model.name}/{role}/{prefix.tier.value}"
                    rows[f"{place}/{prefix.block:016x}"] = _row(prefix, place, model, role)
            self.rows = rows
            await asyncio.sleep(min(LONGEST_INTERVAL_SECONDS, max(INTERVAL_SECONDS, (self.seconds - before) / SHARE)))

    def _spent(self, seconds: float) -> None:
        self.seconds += seconds


async def in_slices(scan: PrefixScan, spent: Callable[[float], None]) -> list[CachedPrefix]:
    """Run a scan without holding the event loop for long; `spent` gets the processor seconds of each slice."""
    begun, computed = perf_counter(), thread_time()
    while True:
        try:
            next(scan)
        except StopIteration as end:
            spent(thread_time() - computed)
            found: list[CachedPrefix] = end.value
            return found
        if perf_counter() - begun >= SLICE_SECONDS:
            spent(thread_time() - computed)
            await asyncio.sleep(PAUSE_SECONDS)
            begun, computed = perf_counter(), thread_time()


def _routers(served: list[ServedModel]) -> Iterator[tuple[ServedModel, str, Router]]:
    for model in served:
        yield model, model.card.worker_type.value, model.router
        prefill = model.handoffs.pool.router if model.handoffs else None
        if prefill is not None:
            yield model, "prefill", prefill


def _row(prefix: CachedPrefix, place: str, model: ServedModel, role: str) -> Document:
    row: Document = {
        "model": model.name,
        "role": role,
        "begin": prefix.begin,
        "blocks": prefix.blocks,
        "tokens": prefix.blocks * model.card.kv_cache_block_size,
        "held": prefix.held,
        "holders": len(prefix.workers),
        "workers": [f"{worker.worker_id}/{worker.dp_rank}" for worker in prefix.workers[:MOST_WORKERS]],
    }
    if prefix.tier is not Tier.Device:
        row["tier"] = prefix.tier.value
    if prefix.parent is not None:
        row["parent"] = f"{place}/{prefix.parent:016x}"
    return row
