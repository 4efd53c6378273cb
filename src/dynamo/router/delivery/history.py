"""What happened to a delivery and when."""

from __future__ import annotations

from time import perf_counter

from msgspec import Struct


class Migration(Struct, frozen=True):
    """A finished migration, from the failure of the old worker on."""

    kind: str
    """`new_request` when nothing had been generated, else `ongoing_request`."""
    outcome: str
    """`success` (the new worker produced output), `failure` or `cancelled`."""
    seconds: float
    source: int = 0
    """The instance that failed."""
    ended_at: float = 0.0
    """By `perf_counter`."""


class DeliveryHistory:
    """What happened to a delivery and when, for the metrics."""

    __slots__ = (
        "_current", "asked_at", "finished_migrations", "first_output_time", "migrations", "placed_at", "restarts",
        "too_long", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.asked_at = 0.0
        """When a router was first asked for a worker, by `perf_counter`."""
        self.waited = 0.0
        """Seconds in that router's queue."""
        self.placed_at = 0.0
        """When it was first placed, by `perf_counter`."""
        self.first_output_time: float | None = None
        """When a worker first produced output, by `perf_counter`."""
        self.migrations = 0
        """Migrations that were started, including those that failed."""
        self.restarts = 0
        """Migrations before anything was generated."""
        self.too_long = False
        """It has failed because it was too long to migrate."""
        self.finished_migrations: tuple[Migration, ...] = ()
        self._current: tuple[str, float, int] | None = None
        """Kind, start and source of the migration under way."""

    @property
    def is_migrating(self) -> bool:
        return self._current is not None

    def first_output(self) -> None:
        if self.first_output_time is None:
            self.first_output_time = perf_counter()

    def first_token(self) -> None:
        """Record the first token of the request; a migration has succeeded with it too."""
        self.first_output()
        self.end_migration("success")

    def begin_migration(self, source: int = 0) -> None:
        """Record that a migration from this instance begins; the one under way, if any, has failed."""
        self.end_migration("failure")
        fresh = self.first_output_time is None
        self.migrations += 1
        self.restarts += fresh
        self._current = ("new_request" if fresh else "ongoing_request", perf_counter(), source)

    def end_migration(self, outcome: str) -> None:
        """Record the outcome of the migration under way, if any."""
        if self._current:
            kind, began, source = self._current
            self._current = None
            now = perf_counter()
            self.finished_migrations += (Migration(kind, outcome, now - began, source, now),)
