"""Log probabilities that look like a model's: a distribution over tokens follows from the context alone.

The likeliest tokens after a context are those that its answers get with choice or seed 0, 1, 2 … They share most of the
probability, each rank less than the one before; all other tokens share the rest. So what one request generates has the
same log probability as a part of another request's prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import log

from msgspec import structs

from dynamo.protocols.engine import EngineOutput, OutputOptions, TopLogprob
from dynamo.protocols.errors import DynamoException
from dynamo.runtime.stream import Sink

from .tokens import draw_one, mixed_context

RANKS = 20
"""As many alternatives as the API lets a client ask for."""
_LIKELY = 0.9
_UNLIKELY = (1 - _LIKELY) / (1 << 18)
"""The most that any other token has: all tokens of the largest vocabulary add up to less than one."""


class TokenDistribution:
    """What may follow a context, which is known by its length and the sum of its tokens."""

    def __init__(self, words: Sequence[int], context_sum: int, position: int) -> None:
        mixed = mixed_context(context_sum, position)
        self._mixed = mixed
        ranked = dict.fromkeys(draw_one(words, mixed, choice) for choice in range(RANKS))
        # What each rank leaves to those after it: some contexts are certain, some are not.
        keep = 0.3 + 0.5 * _fraction(mixed)
        self._likely = {token: _LIKELY * (1 - keep) * keep**rank + _UNLIKELY for rank, token in enumerate(ranked)}

    def logprob(self, token: int) -> float:
        return log(self._likely.get(token) or _UNLIKELY * (1 + _fraction(self._mixed + token)) / 2)

    def top(self, count: int, token: int) -> list[TopLogprob]:
        """The likeliest `count` tokens, and this one if it is not among them."""
        ranked = [
            TopLogprob(token_id=id, logprob=log(probability), rank=rank)
            for rank, (id, probability) in enumerate(islice(self._likely.items(), count), 1)
        ]
        if all(each.token_id != token for each in ranked):
            ranks = {id: rank for rank, id in enumerate(self._likely, 1)}
            ranked.append(TopLogprob(token_id=token, logprob=self.logprob(token), rank=ranks.get(token)))
        return ranked


def _fraction(mixed: int) -> float:
    """From 0 up to 1."""
    return ((mixed ^ (mixed >> 29)) * 0xD6E8FEB86659FD93 >> 32 & 0xFFFF) / 0x1_0000


class LogprobSink:
    """Adds the log probabilities that a request asks for to its tokens, on their way to its sink."""

    def __init__(self, sink: Sink, options: OutputOptions, prompt: Sequence[int], words: Sequence[int]) -> None:
        self._sink = sink
        self._top = options.logprobs
        self._prompt_top = options.prompt_logprobs
        self._prompt = prompt
        self._words = words
        self._sum = sum(prompt)
        self._position = len(prompt)

    def tokens(self, ids: list[int]) -> None:
        self.item(EngineOutput(token_ids=ids))

    def item(self, output: EngineOutput) -> None:
        self._sink.item(self._with_logprobs(output))

    def end(self) -> None:
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        self._sink.fail(error)

    def _with_logprobs(self, output: EngineOutput) -> EngineOutput:
        if self._prompt_top is not None:
            output = structs.replace(output, prompt_logprobs=self._of_prompt(self._prompt_top))
            self._prompt_top = None
        if self._top is None or not output.token_ids:
            return output
        log_probs, tops = [], []
        for token in output.token_ids:
            top = self._next(token, self._top)
            tops.append(top)
            log_probs.append(next(each.logprob for each in top if each.token_id == token))
        return structs.replace(output, log_probs=log_probs, top_logprobs=tops)

    def _next(self, token: int, count: int) -> list[TopLogprob]:
        top = TokenDistribution(self._words, self._sum, self._position).top(count, token)
        self._sum += token
        self._position += 1
        return top

    def _of_prompt(self, count: int) -> list[list[TopLogprob] | None]:
        """One entry per token; the first has no context."""
        entries: list[list[TopLogprob] | None] = []
        before = 0
        for position, token in enumerate(self._prompt):
            entries.append(TokenDistribution(self._words, before, position).top(count, token) if position else None)
            before += token
        return entries
