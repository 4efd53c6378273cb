"""The circuit breaker of one instance, which decides whether it gets requests after failures, and the probe of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from dynamo.process.backoff import Backoff
from dynamo.protocols.errors import DynamoException
from dynamo.runtime.context import Context
from dynamo.runtime.plane.base import Channel
from dynamo.runtime.stream import FirstAnswer

FAILURES = 5
"""Engine errors in a row that open a breaker."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
PATIENCE_SECONDS = 5.0
"""How long a probe may take to be answered."""


class BreakerState(Enum):
    CLOSED = "closed"
    """Gets requests."""
    OPEN = "open"
    """Gets none until its pause is over and a probe was answered."""
    HALF_OPEN = "half-open"
    """Gets one request, whose outcome decides."""


class Breaker:
    """Made at the first failure; an instance that works again has none. It knows no time but its clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = BreakerState.CLOSED
        self._pauses = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._clock = clock
        self._errors = 0
        self._tried: float | None = None
        """When the one request of the half-open state was sent."""

    @property
    def pause(self) -> float:
        """Seconds until the next probe; they double while it stays open."""
        return self._pauses.next

    @property
    def allows(self) -> bool:
        if self.state is BreakerState.HALF_OPEN:
            # Its client may have left before the answer decided.
            return self._tried is None or self._clock() - self._tried >= self.pause
        return self.state is BreakerState.CLOSED

    def open(self) -> bool:
        """The instance cannot be reached, broke a stream or hangs; returns whether the breaker was not open before."""
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.HALF_OPEN:
            self.probe_failed()
        self.state, self._errors = BreakerState.OPEN, 0
        return True

    def probe_failed(self) -> None:
        self._pauses.pause()

    def error(self) -> bool:
        """The engine failed a request; returns whether that opened the breaker."""
        self._errors += 1
        if self.state is BreakerState.HALF_OPEN or self._errors >= FAILURES:
            return self.open()
        return False

    def half_open(self) -> None:
        """The instance can be reached, but only a request can show that it works."""
        self.state, self._tried = BreakerState.HALF_OPEN, None

    def sent(self) -> None:
        """A request was sent to the instance."""
        if self.state is BreakerState.HALF_OPEN:
            self._tried = self._clock()


async def answers(channel: Channel, health_check: Any) -> bool:
    """Whether the instance can be reached and begins a good answer to its health check, if it named one."""
    context, answer = Context(), FirstAnswer()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await channel.open()
            if health_check is not None:
                channel.send(health_check, context, answer)
                await answer.value
            return True
    except (TimeoutError, DynamoException):
        return False
    finally:
        context.kill()
