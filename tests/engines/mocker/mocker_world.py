"""What the mocker's tests share: requests in one line, and a listener that replays events."""

from __future__ import annotations

from collections.abc import Iterable

from dynamo.engines.mocker import MockVocabulary
from dynamo.engines.mocker.tokens import MockAnswer, answer_for
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored
from dynamo.protocols.engine import PreprocessedRequest, StopConditions


def answer_to(prompt: list[int], max_tokens: int, limit: int = 10**6) -> MockAnswer:
    request = PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=max_tokens))
    return answer_for(request, MockVocabulary(), limit)


class Replica:
    """A cache's content according to its events, refusing events that contradict it."""

    def __init__(self) -> None:
        self.hashes: set[int] = set()

    def apply(self, changes: Iterable[KvChange]) -> None:
        for change in changes:
            match change:
                case Stored(hashes, parent):
                    assert parent is None or parent in self.hashes
                    assert not self.hashes & set(hashes)
                    self.hashes.update(hashes)
                case Removed(hashes):
                    assert self.hashes >= set(hashes)
                    self.hashes.difference_update(hashes)
                case Cleared():
                    self.hashes.clear()


class TierReplica:
    """Host memory or a disk according to its events, refusing events that contradict it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.hashes: set[int] = set()

    def apply(self, change: KvChange) -> None:
        assert not isinstance(change, Cleared)
        blocks = set(change.sequence_hashes)
        if isinstance(change, Stored):
            assert not self.hashes & blocks
            self.hashes |= blocks
        else:
            assert self.hashes >= blocks
            self.hashes -= blocks
        assert len(self.hashes) <= self.limit
