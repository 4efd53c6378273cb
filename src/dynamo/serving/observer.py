"""Observes a request from outside: the metrics, log lines and traces of the entry point it came through."""

from __future__ import annotations

from typing import Protocol

from dynamo.router.delivery.delivery import Delivery


class RequestObserver(Protocol):
    def served_by(self, model: str) -> None:
        """The request goes to this model. Called first."""

    def attached(self, images: int, audio: int) -> None:
        """The request has this number of images and recordings. Called only for models that may take them."""

    def delivering(self, delivery: Delivery, prompt_tokens: int = 0) -> None:
        """A stream of the request is about to be routed. The observer may put a stage of its own before its sink."""
