"""What the mocker's tests share: requests in one line, and a listener that replays events."""

from __future__ import annotations

from collections.abc import Iterable

from dynamo.engines.mocker import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, MockVocabulary
from dynamo.engines.mocker.tokens import MockAnswer, answer_for
from dynamo.protocols.engine import PreprocessedRequest, StopConditions


def answer_to(prompt: list[int], max_tokens: int, limit: int = 10**6) -> MockAnswer:
    request = PreprocessedRequest(token_ids=prompt, stop_conditions=StopConditions(max_tokens=max_tokens))
    return answer_for(request, MockVocabulary(), limit)


class Replica:
    """A cache's content as told by its events, refusing events that contradict it."""

    def __init__(self) -> None:
        self.hashes: set[int] = set()

    def apply(self, events: Iterable[KvEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    assert event.parent_hash is None or event.parent_hash in self.hashes
                    assert not self.hashes & set(event.block_hashes)
                    self.hashes.update(event.block_hashes)
                case BlockRemoved():
                    assert self.hashes >= set(event.block_hashes)
                    self.hashes.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.hashes.clear()
