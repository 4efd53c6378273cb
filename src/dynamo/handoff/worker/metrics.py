"""The metrics of hand-offs at a worker, and the check that nothing is held without a record."""

from __future__ import annotations

import logging
from typing import Any

from dynamo.engines.base import WorkerHandoff
from dynamo.handoff.record import HandoffLedger, HandoffState
from dynamo.runtime.metrics import Labels, Metric, MetricFamily, families

log = logging.getLogger(__name__)

PREFIX = "dynamo_component_handoff_"
_SETTLED = [state for state in HandoffState if state is not HandoffState.OFFERED]


OPEN_RECORDS: Metric[Any] = Metric("gauge", "open_records", "Hand-offs offered or being sent", lambda one: one.open)


class HandoffMetrics:
    """The hand-off metrics of a prefill worker."""

    def __init__(self, ledger: HandoffLedger, engine: WorkerHandoff) -> None:
        self.leaked_blocks = 0
        self.ledger = ledger
        self.engine = engine
        self.bytes = 0
        self.seconds = 0.0

    def sent(self, size: int, seconds: float) -> None:
        self.bytes += size
        self.seconds += seconds

    def compare(self) -> None:
        """Blocks that the engine holds for hand-offs without a record are a leak."""
        leaked = max(0, self.engine.held_blocks() - self.ledger.blocks)
        if leaked > self.leaked_blocks:
            log.error("%d KV blocks are held for hand-offs that have ended", leaked)
        self.leaked_blocks = leaked

    @property
    def open(self) -> int:
        return len(self.ledger)

    def families(self, labels: Labels) -> list[MetricFamily]:
        return families(_PREFILL, [(labels, self)], PREFIX)


class TakeMetrics:
    """The hand-off metrics of a decode worker."""

    def __init__(self) -> None:
        self.taken = 0
        self.failed = 0
        self.bytes = 0
        self.seconds = 0.0

    def families(self, labels: Labels) -> list[MetricFamily]:
        return families(_DECODE, [(labels, self)], PREFIX)


_PREFILL: tuple[Metric[HandoffMetrics], ...] = (
    Metric("counter", "records_total", "Hand-offs that ended, by how",
        lambda one: {(state.value,): one.ledger.settled[state] for state in _SETTLED}, ("state",)),
    OPEN_RECORDS,
    Metric("gauge", "held_blocks", "KV blocks held for them", lambda one: one.engine.held_blocks()),
    Metric("gauge", "leaked_blocks", "KV blocks held for hand-offs without a record", lambda one: one.leaked_blocks),
    Metric("counter", "sent_bytes_total", "Bytes of computed prompts sent", lambda one: one.bytes),
    Metric("counter", "send_seconds_total", "Time spent on sending them", lambda one: one.seconds),
)  # fmt: skip
_DECODE: tuple[Metric[TakeMetrics], ...] = (
    Metric("counter", "takes_total", "Computed prompts fetched, by outcome",
        lambda one: {("taken",): one.taken, ("failed",): one.failed}, ("outcome",)),
    Metric("counter", "received_bytes_total", "Bytes of computed prompts received", lambda one: one.bytes),
    Metric("counter", "receive_seconds_total", "Time spent on receiving them", lambda one: one.seconds),
)  # fmt: skip
