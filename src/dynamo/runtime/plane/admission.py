"""How many requests a worker takes at a time: some run, a few wait, and the others are rejected as busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from dynamo.protocols.errors import Cancelled, WorkerBusy
from dynamo.runtime.context import Context
from dynamo.runtime.stream import Outlet


class RequestLimit(Struct, frozen=True):
    running: int
    waiting: int


def request_limit(running: int, waiting: int) -> RequestLimit | None:
    """The limit that settings ask for; 0 running requests are no limit."""
    return RequestLimit(running, waiting) if running else None


class RequestAdmission:
    """Starts requests in the order of their arrival. Its owner reports the end of each one."""

    def __init__(self, limit: RequestLimit) -> None:
        self.refused = 0
        self._limit = limit
        self._running: set[Context] = set()
        self._waiting: deque[tuple[Context, Callable[[], None]]] = deque()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def admit(self, context: Context, outlet: Outlet, start: Callable[[], None]) -> None:
        """Start the request now or later, or reject it at once: its caller then tries another worker."""
        if len(self._running) < self._limit.running:
            self._running.add(context)
            start()
        elif len(self._waiting) < self._limit.waiting:
            self._waiting.append((context, start))
            context.on_stop(lambda _: self._left(context, outlet))
        else:
            self.refused += 1
            outlet.fail(WorkerBusy(f"this worker runs {self._limit.running} requests already, which is its limit"))

    def ended(self, context: Context) -> None:
        """A request has ended, in whatever way and whether it was started or not."""
        self._running.discard(context)
        self._forget(context)
        while self._waiting and len(self._running) < self._limit.running:
            following, start = self._waiting.popleft()
            self._running.add(following)
            start()

    def _left(self, context: Context, outlet: Outlet) -> None:
        if self._forget(context):
            outlet.fail(Cancelled("request was cancelled while it waited"))

    def _forget(self, context: Context) -> bool:
        for entry in self._waiting:
            if entry[0] is context:
                self._waiting.remove(entry)
                return True
        return False
