"""An answer begun again: a worker repeats the tokens that the client has, and only what follows is passed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import structs

from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.errors import DynamoException
from dynamo.runtime.stream import Sink


class RepeatingSink(Sink, Protocol):
    """Where the rest of the answer goes."""

    def repeated(self) -> None:
        """The worker repeated some tokens."""

    def differs(self) -> None:
        """The worker answers differently, so the answer cannot be continued. Nothing more arrives."""


class Repetition:
    """The sink of a worker that answers again, from the beginning. `delivered` is what the client has."""

    def __init__(self, delivered: Sequence[int], sink: RepeatingSink) -> None:
        self._delivered = tuple(delivered)
        self._repeated = 0
        self._differs = False
        self._sink = sink

    def tokens(self, ids: list[int]) -> None:
        count = self._take(ids)
        if count is None:
            return
        if rest := ids[count:]:
            self._sink.tokens(rest)

    def item(self, value: Any) -> None:
        if self._differs:
            return
        if not isinstance(value, EngineOutput) or not self._is_repeating:
            self._sink.item(value)
            return
        count = self._take(value.token_ids)
        if count is None:
            return
        rest = after(value, count)
        if rest is None or (value.finish_reason in _ENDS and self._is_repeating):
            self._stop()
        elif rest.token_ids or rest.finish_reason is not None:
            self._sink.item(rest)

    def end(self) -> None:
        if self._differs:
            return
        if self._is_repeating:
            self._stop()
        else:
            self._sink.end()

    def fail(self, error: DynamoException) -> None:
        if not self._differs:
            self._sink.fail(error)

    @property
    def _is_repeating(self) -> bool:
        return self._repeated < len(self._delivered)

    def _take(self, ids: Sequence[int]) -> int | None:
        """How many of these tokens the client has; None if they are not those that it has."""
        if self._differs:
            return None
        if not self._is_repeating:
            return 0
        expected = self._delivered[self._repeated : self._repeated + len(ids)]
        count = len(expected)
        if tuple(ids[:count]) != expected:
            self._stop()
            return None
        self._repeated += count
        if count:
            self._sink.repeated()
        return count

    def _stop(self) -> None:
        self._differs = True
        self._sink.differs()


_ENDS = ("eos", "stop", "length", "content_filter")
"""What ends an answer that was not disturbed."""


def after(output: EngineOutput, count: int) -> EngineOutput | None:
    """The output without its first tokens; None where the text of the others cannot be told apart."""
    if not count:
        return output
    rest = output.token_ids[count:]
    if output.text and rest:
        return None
    return structs.replace(
        output,
        token_ids=rest,
        text=None,
        tokens=output.tokens and output.tokens[count:],
        log_probs=output.log_probs and output.log_probs[count:],
        top_logprobs=output.top_logprobs and output.top_logprobs[count:],
        prompt_logprobs=None,
    )
