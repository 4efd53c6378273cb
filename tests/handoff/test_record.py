"""The ledger of hand-offs: every record ends exactly once, whatever comes in which order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamo.handoff.record import HandoffLedger, HandoffRecord, HandoffState

IDS = st.sampled_from("abcde")


class Histories(RuleBasedStateMachine):
    """Against a naive model: what is held, and what was released."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = HandoffLedger()
        self.now = 0.0
        self.offered: dict[str, HandoffRecord] = {}
        self.sending: dict[str, HandoffRecord] = {}
        self.ended = 0

    @rule(id=IDS, blocks=st.integers(1, 9), lease=st.floats(0.5, 3))
    def offer(self, id: str, blocks: int, lease: float) -> None:
        record = HandoffRecord(id=id, owner=f"request {id}", deadline=self.now + lease, blocks=blocks)
        if id in self.offered or id in self.sending:
            with pytest.raises(ValueError, match="already"):
                self.ledger.offer(record)
        else:
            self.ledger.offer(record)
            self.offered[id] = record

    @rule(id=IDS)
    def take(self, id: str) -> None:
        record = self.ledger.take(id, self.now)
        expected = self.offered.get(id)
        if expected is None or expected.deadline <= self.now:
            assert record is None
        else:
            assert record is expected
            assert record.state is HandoffState.TAKEN
            self.sending[id] = self.offered.pop(id)

    @rule(id=IDS)
    def sent(self, id: str) -> None:
        record = self.ledger.end_transfer(id)
        assert record is self.sending.pop(id, None)
        self.ended += record is not None

    @rule(id=IDS, expired=st.booleans())
    def withdraw(self, id: str, expired: bool) -> None:
        record = self.ledger.withdraw(id, expired=expired)
        assert record is self.offered.pop(id, None)
        if record is not None:
            assert record.state is (HandoffState.EXPIRED if expired else HandoffState.GIVEN_BACK)
            self.ended += 1

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_books_balance(self) -> None:
        held = [*self.offered.values(), *self.sending.values()]
        assert len(self.ledger) == len(held)
        assert self.ledger.blocks == sum(record.blocks for record in held)
        assert sum(self.ledger.settled.values()) == self.ended + len(self.sending)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=30, stateful_step_count=30)
