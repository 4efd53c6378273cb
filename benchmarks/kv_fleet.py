"""Simulated workers in virtual time: the mocker's own scheduler, caches and timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynamo.engines.mocker import Iteration, MockerArgs, MockVocabulary, Ranks, answer_for
from dynamo.engines.mocker.blocks import merge_removals
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import RouterEvent
from dynamo.protocols.engine import PreprocessedRequest, StopConditions

_WORDS = MockVocabulary(4000, 12000)
"""No token of an answer is one of a prompt."""


@dataclass
class Prompt:
    tokens: list[int]
    chain: list[int]
    """Hashes of its complete blocks."""

    @property
    def length(self) -> int:
        return len(self.tokens)

    @staticmethod
    def of(tokens: list[int], block_size: int) -> Prompt:
        return Prompt(list(tokens), prompt_hashes(tokens, block_size))


@dataclass
class Asked:
    on_first: Callable[[float], None]
    on_end: Callable[[float, int], None]
    """Called with the time, and how many tokens of the prompt were found cached."""


class SimWorker:
    def __init__(self, number: int, args: MockerArgs, publish: Callable[[RouterEvent], None]) -> None:
        self.number = number
        self.busy = False
        self._args = args
        self._ranks = Ranks(args)
        self._publish = publish
        self._events = 0
        self._asked: dict[int, Asked] = {}
        self._begun: set[int] = set()

    def ask(self, number: int, prompt: Prompt, length: int, asked: Asked) -> None:
        request = PreprocessedRequest(token_ids=prompt.tokens, stop_conditions=StopConditions(max_tokens=length))
        self._asked[number] = asked
        self._ranks.add(number, prompt.tokens, answer_for(request, _WORDS, self._args.context_limit))

    def begin(self, now: float) -> Iteration | None:
        """The next iteration, which ends when it says; None if the worker is idle."""
        if self.busy or not self._ranks.busy:
            return None
        self.busy = True
        return self._ranks.step(now)

    def finish(self, iteration: Iteration) -> None:
        self.busy = False
        for _, events in iteration.events:
            for data in merge_removals(events):
                self._publish(RouterEvent(worker_id=self.number, event_id=self._events, data=data))
                self._events += 1
        for number in [sequence.request_id for sequence in iteration.answered]:
            if number not in self._begun:
                self._begun.add(number)
                self._asked[number].on_first(iteration.ends)
        for done in iteration.finished:
            self._asked.pop(done.request_id).on_end(iteration.ends, done.cached_tokens)
