"""The mocker beside vLLM itself: the same requests at the same steps, compared step by step with a recording."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dynamo.engines.mocker import MockerArgs, PolynomialTiming
from dynamo.engines.mocker.scheduler import Scheduler
from dynamo.engines.mocker.tokens import MockAnswer
from dynamo.kv.hashing import local_hashes, sequence_hashes
from dynamo.kv.messages import KvChange, Removed, Stored

RECORDINGS = {one["name"]: one for one in json.loads((Path(__file__).parent / "vllm_recording.json").read_text())}


class RecordedAnswer(MockAnswer):
    """Says what vLLM said."""

    def __init__(self, tokens: list[int], length: int) -> None:
        super().__init__(0, 0, 0, [0], length)
        self._tokens = tokens

    def take(self, count: int) -> list[int]:
        first = self._taken
        self._taken += count
        return self._tokens[first : self._taken]


class Numbers:
    """The numbers the recording gives to blocks, by the sequence hashes of their tokens."""

    def __init__(self, blocks: list[list[Any]]) -> None:
        self._hashes: list[int] = []
        for parent, tokens in blocks:
            above = None if parent is None else self._hashes[parent]
            self._hashes += sequence_hashes(local_hashes(tokens, len(tokens)), above)
        self._numbers = {block: number for number, block in enumerate(self._hashes)}

    def of(self, changes: list[KvChange]) -> list[tuple[str, int]]:
        numbered = []
        for change in changes:
            if isinstance(change, Stored):
                numbered += [("stored", self._numbers[block]) for block in change.sequence_hashes]
            elif isinstance(change, Removed):
                numbered += [("removed", self._numbers[block]) for block in change.sequence_hashes]
        return numbered


class FirstAndLast:
    """vLLM tells of every copy of a block; of those, the first one stored and the last one removed."""

    def __init__(self) -> None:
        self._copies: Counter[int] = Counter()

    def of(self, events: list[list[Any]]) -> list[tuple[str, int]]:
        told = []
        for kind, block in events:
            self._copies[block] += 1 if kind == "stored" else -1
            if self._copies[block] == (1 if kind == "stored" else 0):
                told.append((kind, block))
        return told


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_mocker_does_at_every_step_what_vllm_did(name: str) -> None:
    recording = RECORDINGS[name]
    said: dict[int, list[int]] = {}
    for step in recording["steps"]:
        for request_id, tokens in step["tokens"]:
            said.setdefault(request_id, []).extend(tokens)
    args = MockerArgs(**recording["args"])
    scheduler = Scheduler(args, PolynomialTiming(args))
    numbers, copies = Numbers(recording["blocks"]), FirstAndLast()
    steps = iter(recording["steps"])
    for action in recording["actions"]:
        match action:
            case ["add", request_id, prompt, length]:
                scheduler.add(request_id, prompt, RecordedAnswer(said.get(request_id, []), length))
            case ["cancel", request_id]:
                assert scheduler.cancel(request_id)
            case ["step"]:
                expected = next(steps)
                result = scheduler.step()
                assert [[one.request_id, one.take(result.steps)] for one in result.answered] == expected["tokens"]
                finished = [[done.request_id, done.finish_reason, done.cached_tokens] for done in result.finished]
                assert finished == expected["finished"]
                assert numbers.of(scheduler.take_events()) == copies.of(expected["events"])
    assert not scheduler.busy
    assert scheduler.load().preemptions == recording["preemptions"]


def test_the_recordings_show_what_they_are_for() -> None:
    every = RECORDINGS.values()
    assert sum(one["preemptions"] for one in every) > 50
    events = Counter(kind for one in every for step in one["steps"] for kind, _ in step["events"])
    assert events["removed"] > 300
    finished = [done for one in every for step in one["steps"] for done in step["finished"]]
    assert sum(cached > 0 for _, _, cached in finished) > 50
    assert any(action[0] == "cancel" for one in every for action in one["actions"])
