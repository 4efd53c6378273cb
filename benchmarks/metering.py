"""CPU time that the metrics add to a step (through `StreamMeter`, compared with the sink alone) and to a request.

A request here is everything measured and counted for one with a single step, without its log line.
"""

from __future__ import annotations

import logging
import time

from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.frontend.measure.running import RunningRequests
from dynamo.router import Placement
from dynamo.router.delivery.delivery import Delivery
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink

REPEATS = 9
STEPS = 500_000
REQUESTS = 20_000


class NullSink:
    def tokens(self, ids: list[int]) -> None:
        pass

    def item(self, value: object) -> None:
        pass

    def end(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass


def cost(sink: Sink) -> float:
    """Microseconds per step."""
    ids, tokens = [1], sink.tokens
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(STEPS):
            tokens(ids)
        times.append((time.process_time() - start) / STEPS * 1e6)
    return sorted(times)[REPEATS // 2]


def request_cost() -> float:
    """Microseconds per request."""
    running = RunningRequests(FrontendMetrics())
    placement = Placement(None, 1, None)  # type: ignore[arg-type]
    ids, sink, times = [1], NullSink(), []
    for _ in range(REPEATS):
        start = time.process_time()
        for _ in range(REQUESTS):
            record = running.begin("POST", "/v1/chat/completions", "id", "chat_completions")
            record.served_by("model")
            delivery = Delivery(lambda: None, None, {}, Context("id"), sink)  # type: ignore[arg-type]
            delivery.placement = placement
            record.delivering(delivery, 64)
            delivery.sink.tokens(ids)
            running.end(record, 200)
        times.append((time.process_time() - start) / REQUESTS * 1e6)
    return sorted(times)[REPEATS // 2]


def main() -> None:
    logging.disable(logging.CRITICAL)
    record = RequestRecord(FrontendMetrics(), "id", "POST", "/v1/chat/completions", "chat_completions")
    record.served_by("model")
    delivery = Delivery(lambda: None, None, {}, Context("id"), NullSink())  # type: ignore[arg-type]
    record.delivering(delivery)
    plain, metered = cost(NullSink()), cost(delivery.sink)
    print(f"plain {plain:.3f}, metered {metered:.3f}: the metrics add {metered - plain:.3f} us per step (medians)")
    print(f"and {request_cost():.1f} us per request, of which its objects are a part")


if __name__ == "__main__":
    main()
