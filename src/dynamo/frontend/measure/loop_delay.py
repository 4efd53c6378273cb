"""How late the event loop is, measured by a periodic timer: what delays the timer delays every stream as much."""

from __future__ import annotations

import asyncio
from time import perf_counter

from dynamo.runtime.metrics import Histogram, Metric, MetricFamily, Number, families

EVERY_SECONDS = 0.1
STALL_SECONDS = 0.005
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LoopDelay:
    """Measures from `start` to `stop`."""

    def __init__(self) -> None:
        self.delays = Histogram(_BOUNDS)
        self.stalls = Number()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._due = perf_counter() + EVERY_SECONDS
        self._timer = asyncio.get_running_loop().call_later(EVERY_SECONDS, self._fired)

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _fired(self) -> None:
        late = max(0.0, perf_counter() - self._due)
        self.delays.observe(late)
        self.stalls.value += late > STALL_SECONDS
        self.start()

    def snapshot(self, prefix: str) -> list[MetricFamily]:
        return families(_METRICS, [({}, self)], f"{prefix}_event_loop_")


_METRICS: tuple[Metric[LoopDelay], ...] = (
    Metric("histogram", "delay_seconds", "How late a timer fires", lambda loop: loop.delays),
    Metric(
        "counter", "stall_total", f"Times it was more than {STALL_SECONDS * 1000:g} ms late", lambda loop: loop.stalls
    ),
)
