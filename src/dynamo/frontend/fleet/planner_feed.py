"""What the planners say, followed while someone looks."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from dynamo.frontend.fleet import Document
from dynamo.protocols.errors import StartError
from dynamo.protocols.planner import SUBJECT, PlannerReport
from dynamo.runtime.events import EventPlane, Subscription

log = logging.getLogger(__name__)

MOST_PLANNERS = 8
MISSED = 4
"""A planner has ended once it has missed this number of decisions and `LEAST_SECONDS`; what it said stays."""
LEAST_SECONDS = 15.0


class PlannerFeed:
    def __init__(self, events: EventPlane) -> None:
        self._events = events
        self._decode = msgspec.msgpack.Decoder(PlannerReport).decode
        self._latest: dict[str, tuple[str, float, PlannerReport]] = {}
        """By process: its namespace, when it was heard, and its last report."""
        self._subscribing: asyncio.Task[Subscription | None] | None = None

    def start(self) -> None:
        if self._subscribing is None:
            self._subscribing = asyncio.create_task(self._subscribe())

    def stop(self) -> None:
        task, self._subscribing = self._subscribing, None
        self._latest.clear()
        if task is not None:
            task.cancel()
            task.add_done_callback(_unsubscribe)

    def rows(self) -> Document:
        now = time.monotonic()
        rows: Document = {}
        for id, (namespace, heard, report) in self._latest.items():
            silent = now - heard > max(LEAST_SECONDS, MISSED * report.interval)
            rows[id] = {
                "namespace": namespace,
                "advisory": report.advisory,
                "state": "silent" if silent else "running",
                "sentences": [{"time": round(one.time, 3), "text": one.text} for one in report.sentences],
            }
        return rows

    async def _subscribe(self) -> Subscription | None:
        try:
            return await self._events.subscribe(f"{SUBJECT}.>", self._receive)
        except StartError as error:
            log.warning("cannot follow what planners say: %s", error)
            return None

    def _receive(self, subject: str, data: bytes) -> None:
        try:
            report = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.debug("ignoring a malformed report of a planner: %s", error)
            return
        self._latest.pop(report.planner, None)
        self._latest[report.planner] = (subject.partition(".")[2], time.monotonic(), report)
        while len(self._latest) > MOST_PLANNERS:
            del self._latest[next(iter(self._latest))]


def _unsubscribe(task: asyncio.Task[Subscription | None]) -> None:
    if not task.cancelled() and task.exception() is None and (subscription := task.result()) is not None:
        subscription.unsubscribe()
