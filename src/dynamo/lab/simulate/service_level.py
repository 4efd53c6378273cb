"""Which share of simulated requests met the targets of a service: time to the first token, time between tokens."""

from __future__ import annotations

from typing import Any

from dynamo.lab.simulate.simulation import Measured


class ServiceLevel(Measured):
    """Counts the requests whose time to the first token and mean time between tokens are within the targets."""

    def __init__(self, ttft: float, itl: float) -> None:
        super().__init__()
        self._ttft, self._itl = ttft, itl
        self.within = 0

    @property
    def share_within(self) -> float:
        requests = self.completed + self.failed
        return self.within / requests if requests else 1.0

    def ended(self, request: Any) -> None:
        first, more = len(self.ttft), len(self.tpot)
        super().ended(request)
        if len(self.ttft) > first:
            slow = len(self.tpot) > more and self.tpot.last > self._itl
            self.within += self.ttft.last <= self._ttft and not slow
