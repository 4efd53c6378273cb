"""Writes the fleet's log and history down while the server runs, also while nobody looks."""

from __future__ import annotations

import asyncio

from dynamo.frontend.fleet.history import FleetHistory
from dynamo.frontend.fleet.log import FleetLog
from dynamo.frontend.measure.running import RunningRequests
from dynamo.serving.models import Models

TICK_SECONDS = 1.0


class FleetRecorder:
    """Records from `start` to `stop`."""

    def __init__(self, models: Models, requests: RunningRequests) -> None:
        self.log = FleetLog(models)
        self.history = FleetHistory(models, requests)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self.start)
        self.log.tick()
        self.history.tick()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
