"""The stream of a request in the log, at level trace."""

from __future__ import annotations

import logging
from typing import Any

from dynamo.protocols.errors import DynamoException
from dynamo.runtime.logging import TRACE
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class TracedSink:
    def __init__(self, sink: Sink, request_id: str, request: object) -> None:
        self._sink = sink
        self._request_id = request_id
        log.log(TRACE, "request %s: %r", request_id, request)

    def tokens(self, ids: list[int]) -> None:
        log.log(TRACE, "request %s: tokens %s", self._request_id, ids)
        self._sink.tokens(ids)

    def item(self, value: Any) -> None:
        log.log(TRACE, "request %s: %r", self._request_id, value)
        self._sink.item(value)

    def end(self) -> None:
        log.log(TRACE, "request %s: end", self._request_id)
        self._sink.end()

    def fail(self, error: DynamoException) -> None:
        log.log(TRACE, "request %s: failed: %s", self._request_id, error)
        self._sink.fail(error)
