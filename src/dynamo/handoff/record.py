"""The record of a hand-off: what a prefill worker holds for a decode worker, for how long, and how it ended.

A pure state machine: time is an input, and whoever settles a record gets it exactly once, to free what it stands for.
"""

from __future__ import annotations

import enum
from collections import Counter

from msgspec import Struct


class HandoffState(enum.Enum):
    OFFERED = "offered"
    TAKEN = "taken"
    GIVEN_BACK = "given_back"
    EXPIRED = "expired"


class HandoffRecord(Struct, kw_only=True):
    id: str
    owner: str
    """The request that it belongs to."""
    deadline: float
    blocks: int
    state: HandoffState = HandoffState.OFFERED


class HandoffLedger:
    """The records of one worker. A record is open from its offer until its blocks are free again."""

    def __init__(self) -> None:
        self.settled: Counter[HandoffState] = Counter()
        self._offered: dict[str, HandoffRecord] = {}
        self._sending: dict[str, HandoffRecord] = {}

    def __len__(self) -> int:
        return len(self._offered) + len(self._sending)

    @property
    def blocks(self) -> int:
        """The blocks of all open records. A worker that holds more for hand-offs has a leak."""
        return sum(record.blocks for open in (self._offered, self._sending) for record in open.values())

    def offer(self, record: HandoffRecord) -> None:
        if record.id in self._offered or record.id in self._sending:
            raise ValueError(f"there is a record {record.id} already")
        self._offered[record.id] = record

    def take(self, id: str, now: float) -> HandoffRecord | None:
        """Begin to send; None if it is not offered (any more). Its blocks stay held until `end_transfer`."""
        record = self._offered.get(id)
        if record is None or record.deadline <= now:
            return None
        self._settle(record, HandoffState.TAKEN)
        self._sending[id] = record
        return record

    def end_transfer(self, id: str) -> HandoffRecord | None:
        """End the transfer of a taken record, complete or not."""
        return self._sending.pop(id, None)

    def withdraw(self, id: str, *, expired: bool) -> HandoffRecord | None:
        """Withdraw an offer that has expired or was given back; None if it was settled before.

        The caller says which: its timer may fire a moment before the deadline.
        """
        record = self._offered.get(id)
        if record is not None:
            self._settle(record, HandoffState.EXPIRED if expired else HandoffState.GIVEN_BACK)
        return record

    def _settle(self, record: HandoffRecord, state: HandoffState) -> None:
        record.state = state
        self.settled[state] += 1
        del self._offered[record.id]
