"""What is said about one choice of an answer, whoever listens: an SSE writer, a collector, a chat on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from dynamo.protocols.engine import TopLogprob, Usage
from dynamo.protocols.errors import DynamoException


class TokenLogprob(Struct):
    """One generated token with its probability and the alternatives the engine named."""

    token_id: int
    logprob: float | None
    top: list[TopLogprob]


class Finish(Struct):
    reason: str
    """stop, length, tool_calls or content_filter."""
    usage: Usage
    stop_reason: str | int | None = None


class ChoiceSink(Protocol):
    """After `finish` or `fail`, exactly one of which comes once, nothing more is said."""

    def begin(self, so_far: Callable[[], Usage]) -> None:
        """Called first: `so_far` tells at any time what the answer has cost until then."""

    def escaped(self, text: str) -> None:
        """Content, already as it stands between the quotes of a JSON string: the hot path."""

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...

    def tool_start(self, index: int, id: str, name: str) -> None: ...

    def tool_arguments(self, index: int, fragment: str) -> None: ...

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        """The probabilities of the tokens behind the next text."""

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """The probabilities of the prompt's tokens, before any text; None is that of the first."""

    def finish(self, finish: Finish) -> None: ...

    def fail(self, error: DynamoException) -> None: ...
