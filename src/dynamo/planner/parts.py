"""The parts of a planner: a source of measurements, and an actor that starts and drains workers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol

from msgspec import Struct

from dynamo.planner.config import Role
from dynamo.planner.history import TrafficSeen


class SourceError(Exception):
    """The measurements cannot be read now."""


class ActorError(Exception):
    """The number of workers cannot be read or changed now.

    `unchanged` are the roles whose number certainly did not change; of others a change may have been carried out.
    """

    def __init__(self, message: str, *, unchanged: Set[Role] = frozenset()) -> None:
        super().__init__(message)
        self.unchanged = unchanged


class PoolLoad(Struct, frozen=True, kw_only=True):
    """The workers of one role as a frontend sees them."""

    serving: int
    queued_tokens: float = 0.0
    kv_rate: float | None = None


class Measurement(Struct, frozen=True, kw_only=True):
    traffic: TrafficSeen
    pools: Mapping[Role, PoolLoad]
    """A role that is not there has no workers."""


class PoolOrder(Struct, frozen=True, kw_only=True):
    """The workers of one role as the actor knows them."""

    wanted: int | None
    """None where nothing was ever asked for."""
    starting: int | None = None
    """None where the actor does not know: it is then those that do not serve yet."""
    in_progress: bool = False


class TrafficSource(Protocol):
    async def read(self) -> Measurement | None:
        """Measure what happened since the last call; None at the first one. Raises SourceError."""
        ...


class Actor(Protocol):
    async def read(self) -> Mapping[Role, PoolOrder]:
        """Read how many workers there are. Raises ActorError."""
        ...

    async def scale(self, workers: Mapping[Role, int]) -> None:
        """Begin to start or drain workers; does not wait for it. Raises ActorError."""
        ...
