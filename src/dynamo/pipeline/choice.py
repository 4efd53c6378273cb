"""The interface through which one choice of an answer is delivered to an SSE writer, a collector or a terminal."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from dynamo.protocols.engine import TopLogprob, Usage
from dynamo.protocols.errors import DynamoException


class TokenLogprob(Struct):
    """One token with its log probability and the alternatives the engine reported."""

    token_id: int
    logprob: float | None
    top: list[TopLogprob]


class Finish(Struct):
    reason: str
    """stop, length, tool_calls or content_filter."""
    usage: Usage
    stop_reason: str | int | None = None


class ChoiceSink(Protocol):
    """Exactly one of `finish` and `fail` is called, once, and nothing after it."""

    def escaped(self, text: str) -> None:
        """Content that is already escaped for a JSON string: the hot path."""

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...

    def tool_start(self, index: int, id: str, name: str) -> None: ...

    def tool_arguments(self, index: int, fragment: str) -> None: ...

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        """The log probabilities of the tokens of the next text."""

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """The log probabilities of the prompt's tokens, before any text; None for the first token."""

    def finish(self, finish: Finish) -> None: ...

    def fail(self, error: DynamoException) -> None: ...
