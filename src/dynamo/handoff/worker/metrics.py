"""The metrics of hand-offs at a worker, and the check that nothing is held without a record."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dynamo.engines.base import WorkerHandoff
from dynamo.handoff.record import HandoffLedger, HandoffState

log = logging.getLogger(__name__)

_PREFIX = "dynamo_component_handoff"


class HandoffMetrics:
    """Of a prefill worker."""

    def __init__(self, ledger: HandoffLedger, engine: WorkerHandoff) -> None:
        self.leaked_blocks = 0
        self._ledger = ledger
        self._engine = engine
        self.bytes = 0
        """Of computed prompts sent."""
        self.seconds = 0.0

    def compare(self) -> None:
        """Blocks that the engine holds for hand-offs without a record are a leak."""
        leaked = max(0, self._engine.held_blocks() - self._ledger.blocks)
        if leaked > self.leaked_blocks:
            log.error("%d KV blocks are held for hand-offs that have ended", leaked)
        self.leaked_blocks = leaked

    def collect(self) -> Iterator[Metric]:
        settled = CounterMetricFamily(f"{_PREFIX}_records", "Hand-offs that ended, by how", labels=["state"])
        for state in HandoffState:
            if state is not HandoffState.OFFERED:
                settled.add_metric([state.value], self._ledger.settled[state])
        yield settled
        yield GaugeMetricFamily(f"{_PREFIX}_open_records", "Hand-offs offered or being sent", len(self._ledger))
        yield GaugeMetricFamily(f"{_PREFIX}_held_blocks", "KV blocks held for them", self._engine.held_blocks())
        yield GaugeMetricFamily(
            f"{_PREFIX}_leaked_blocks", "KV blocks held for hand-offs without a record", self.leaked_blocks
        )
        yield CounterMetricFamily(f"{_PREFIX}_sent_bytes", "Bytes of computed prompts sent", self.bytes)
        yield CounterMetricFamily(f"{_PREFIX}_send_seconds", "Time spent on sending them", self.seconds)


class TakeMetrics:
    """Of a decode worker."""

    def __init__(self) -> None:
        self.taken = 0
        self.failed = 0
        self.bytes = 0
        self.seconds = 0.0

    def collect(self) -> Iterator[Metric]:
        results = CounterMetricFamily(f"{_PREFIX}_takes", "Computed prompts fetched, by outcome", labels=["outcome"])
        results.add_metric(["taken"], self.taken)
        results.add_metric(["failed"], self.failed)
        yield results
        yield CounterMetricFamily(f"{_PREFIX}_received_bytes", "Bytes of computed prompts received", self.bytes)
        yield CounterMetricFamily(f"{_PREFIX}_receive_seconds", "Time spent on receiving them", self.seconds)
