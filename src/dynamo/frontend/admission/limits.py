"""What one API key may use: requests and tokens per second, and requests at once. No I/O and no clock of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct, structs

from dynamo.protocols.errors import DynamoException

Clock = Callable[[], float]


class RateLimitExceeded(DynamoException):
    kind = "rate_limit_exceeded"
    status = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until the same request would be admitted, if nothing else is sent."""


class KeyLimits(Struct, frozen=True, kw_only=True):
    """0 is no limit."""

    requests_per_second: float = 0.0
    tokens_per_second: float = 0.0
    concurrent: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests_per_second or self.tokens_per_second or self.concurrent)

    def divided(self, processes: int) -> KeyLimits:
        """The share of one of several processes; each admits at least one request at a time."""
        return structs.replace(
            self,
            requests_per_second=self.requests_per_second / processes,
            tokens_per_second=self.tokens_per_second / processes,
            concurrent=max(1, self.concurrent // processes) if self.concurrent else 0,
        )


class Bucket:
    """Refills at `rate` per second, up to what one second brings (at least 1).

    In any `t` seconds no more than `capacity + rate * t` is taken from it, beyond the excess of a single amount over
    the capacity: such an amount waits for a full bucket and leaves a debt.
    """

    def __init__(self, rate: float, clock: Clock) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate)
        self._clock = clock
        self._level = self.capacity
        self._at = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.rate)
        self._at = now
        return self._level

    def seconds_until(self, amount: float) -> float:
        """0.0 if `amount` can be taken now."""
        missing = min(amount, self.capacity) - self.level
        # Rounding must not refuse what has been refilled to within a billionth.
        return missing / self.rate if missing > 1e-9 * self.capacity else 0.0

    def take(self, amount: float) -> None:
        self._level = self.level - amount

    def give_back(self, amount: float) -> None:
        self._level = min(self.capacity, self.level + amount)


class KeyMeter:
    """The limits of one key and what it uses of them."""

    def __init__(self, limits: KeyLimits, clock: Clock) -> None:
        self._limits = limits
        self._requests = Bucket(limits.requests_per_second, clock) if limits.requests_per_second else None
        self._tokens = Bucket(limits.tokens_per_second, clock) if limits.tokens_per_second else None
        self.running = 0

    def check(self, tokens: int = 1) -> None:
        """Raise RateLimitExceeded if a request of `tokens` tokens is over a limit now."""
        limits = self._limits
        if limits.concurrent and self.running >= limits.concurrent:
            raise RateLimitExceeded(f"{self.running} requests of this key run already, which is its limit.", 1.0)
        if self._requests and (wait := self._requests.seconds_until(1.0)):
            raise RateLimitExceeded(f"This key may send {limits.requests_per_second:g} requests per second.", wait)
        if self._tokens and (wait := self._tokens.seconds_until(tokens)):
            raise RateLimitExceeded(f"This key may use {limits.tokens_per_second:g} tokens per second.", wait)

    def admit(self, tokens: int) -> MeteredRequest:
        """`tokens` are reserved until the request ends; raises RateLimitExceeded."""
        self.check(tokens)
        self.running += 1
        if self._requests:
            self._requests.take(1.0)
        if self._tokens:
            self._tokens.take(tokens)
        return MeteredRequest(self, tokens)

    def settle(self, reserved: int, used: int) -> None:
        self.running -= 1
        if self._tokens:
            self._tokens.give_back(reserved - used)

    def headers(self) -> dict[str, str]:
        """As OpenAI's: the limit, what is left of it, and when it will be whole again."""
        found = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket:
                found[f"x-ratelimit-limit-{name}"] = str(math.floor(bucket.capacity))
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(bucket.level + 1e-9)))
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.seconds_until(bucket.capacity))
        return found


class MeteredRequest:
    """A request that runs; `end` it once."""

    __slots__ = ("_meter", "_reserved")

    def __init__(self, meter: KeyMeter, reserved: int) -> None:
        self._meter = meter
        self._reserved = reserved

    def end(self, used: int) -> None:
        """`used` tokens, prompt and answer together."""
        self._meter.settle(self._reserved, used)


def duration(seconds: float) -> str:
    """`6m0s`, `1.5s` or `20ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.3g}s" if minutes else f"{rest:.4g}s"
