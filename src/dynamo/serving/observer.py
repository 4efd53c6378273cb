"""Observes a request from outside: the metrics, log lines and traces of the entry point it came through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dynamo.protocols.engine import Session
from dynamo.router.delivery.delivery import Delivery


class RequestObserver(Protocol):
    @property
    def notices(self) -> list[str]:
        """What the client should know about its request beside the answer: what was left out of it."""

    def served_by(self, model: str) -> None:
        """The request goes to this model. Called first."""

    def attached(self, images: int, audio: int) -> None:
        """The request has this number of images and recordings. Called only for models that may take them."""

    def prepared(self, session: Session, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        """The prompt of a turn of a session that its client named; `decode` gives the text of tokens."""

    def delivering(self, delivery: Delivery, prompt_tokens: int = 0) -> None:
        """A stream of the request is about to be routed. The observer may put a stage of its own before its sink."""
