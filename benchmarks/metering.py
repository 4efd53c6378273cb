"""CPU time the metrics add to a token: a step told to `Metered`, against the same step told to its sink directly.

usage: python benchmarks/metering.py
"""

from __future__ import annotations

import time

from dynamo.frontend.exchange import Exchange
from dynamo.frontend.metrics import FrontendMetrics
from dynamo.runtime.stream import Sink

REPEATS = 9
STEPS = 500_000


class Nothing:
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


def main() -> None:
    exchange = Exchange(FrontendMetrics(), "id", "POST", "/v1/chat/completions", "chat_completions")
    exchange.served_by("model")
    plain, metered = cost(Nothing()), cost(exchange.metered(Nothing()))
    print(f"plain {plain:.3f}, metered {metered:.3f}: the metrics add {metered - plain:.3f} us per step (medians)")


if __name__ == "__main__":
    main()
