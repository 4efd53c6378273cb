"""One stream of changes for all viewers: built once, and not at all while nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time

import msgspec

from dynamo.api.answers.sse import KEEP_ALIVE, EventStream
from dynamo.frontend.fleet import Document, merge_patch
from dynamo.frontend.fleet.view import FleetView
from dynamo.runtime.metrics import Metric

INTERVAL_SECONDS = 0.5
SHARE = 0.008
"""The most of a core (1 % with what is not timed): changes that take long to compute come less often."""
LONGEST_INTERVAL_SECONDS = 5.0
"""The longest interval between changes, however long they take to compute."""
QUIET_TICKS = 20
"""Intervals without a change until a comment is sent, so that viewers and proxies see that the stream lives."""
MAX_UNSENT = 1 << 18
"""Bytes. A viewer that is so far behind gets no more changes, and a new snapshot once it has read all."""


class FleetStream:
    """Sends each viewer a `snapshot`, then a `patch` whenever something changed. All viewers end when `is_over`."""

    def __init__(self, view: FleetView, is_over: Callable[[], bool]) -> None:
        self._view = view
        self._is_over = is_over
        self._viewers: dict[EventStream, bool] = {}
        """Whether each is behind."""
        self._document: Document = {}
        self._timer: asyncio.TimerHandle | None = None
        self._quiet = 0
        self._seconds = 0.0
        self._asking = 0
        """Viewers that ask for the cached prefixes."""

    @contextmanager
    def viewer(self, stream: EventStream, *, prefixes: bool = False) -> Iterator[None]:
        """Send everything to `stream` meanwhile; the cached `prefixes` are there while any viewer asks for them."""
        if self._timer is None:
            self._view.open()
            self._document = self._view.document()
            self._schedule()
        stream.write(_event("snapshot", self._document))
        self._viewers[stream] = False
        self._asking += prefixes
        if prefixes:
            self._view.want_prefixes(True)
        try:
            yield
        finally:
            del self._viewers[stream]
            self._asking -= prefixes
            if prefixes and not self._asking:
                self._view.want_prefixes(False)
            if not self._viewers and self._timer:
                self._timer.cancel()
                self._timer = None
                self._document = {}
                self._view.forget()

    @property
    def seconds(self) -> float:
        """Processor time spent for viewers so far."""
        return self._seconds + self._view.scan_seconds

    def _schedule(self, delay: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(INTERVAL_SECONDS, delay), self._tick)

    def _tick(self) -> None:
        begun = thread_time()
        self._schedule()  # first, so that a failure of one tick does not end the stream
        if self._is_over():
            for stream in self._viewers:
                stream.end()
            return
        before, self._document = self._document, self._view.document()
        patch = merge_patch(before, self._document)
        self._quiet = 0 if patch else self._quiet + 1
        if patch:
            self._send(_event("patch", patch))
        elif self._quiet % QUIET_TICKS == 0:
            self._send(KEEP_ALIVE)
        self._catch_up()
        spent = thread_time() - begun
        self._seconds += spent
        self._schedule(min(LONGEST_INTERVAL_SECONDS, spent / SHARE))

    def _send(self, event: bytes) -> None:
        for stream, behind in self._viewers.items():
            if behind or stream.unsent > MAX_UNSENT:
                self._viewers[stream] = True
            else:
                stream.write(event)

    def _catch_up(self) -> None:
        behind = [stream for stream, is_behind in self._viewers.items() if is_behind and not stream.unsent]
        if behind:
            snapshot = _event("snapshot", self._document)
            for stream in behind:
                stream.write(snapshot)
                self._viewers[stream] = False


VIEWING: Metric[FleetStream] = Metric("counter", "fleet_view_cpu_seconds_total",
    "Processor time spent for viewers of the fleet", lambda stream: stream.seconds)  # fmt: skip


def _event(name: str, document: Document) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(document))
