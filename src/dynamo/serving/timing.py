"""Where the time of a request went: parts that add up to the whole."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dynamo.router.delivery.history import DeliveryHistory, Migration


class TimingParts(Struct, frozen=True):
    """In milliseconds, in the order in which they come; migrations are taken out of what they interrupt."""

    preprocess_ms: float
    """The chat template and the tokenizer."""
    queue_ms: float
    """Waiting in the router for a worker with room."""
    route_ms: float
    """Choosing a worker, and reaching it."""
    prefill_ms: float
    """At the worker until the first output: its queue, the prompt, a hand-off and the network."""
    migration_ms: float
    """From the failure of a worker to the first output of the next one."""
    decode_ms: float
    """From the first output on."""


def timing_parts(began: float, ended: float, history: DeliveryHistory) -> TimingParts:
    """The parts of the time from `began` to `ended`, by `perf_counter`, of a request with one delivery."""
    asked = _between(began, history.asked_at or ended, ended)
    placed = _between(asked, history.placed_at or ended, ended)
    first = _between(placed, history.first_output_time or ended, ended)
    waited = min(history.waited, placed - asked)
    before, after = (_overlap(history.finished_migrations, *span) for span in ((placed, first), (first, ended)))
    return TimingParts(
        preprocess_ms=(asked - began) * 1000,
        queue_ms=waited * 1000,
        route_ms=(placed - asked - waited) * 1000,
        prefill_ms=(first - placed - before) * 1000,
        migration_ms=(before + after) * 1000,
        decode_ms=(ended - first - after) * 1000,
    )


def _between(low: float, value: float, high: float) -> float:
    return min(max(low, value), high)


def _overlap(migrations: Iterable[Migration], begin: float, end: float) -> float:
    """Seconds of the migrations within a span. They follow one another."""
    return sum(max(0.0, min(one.ended_at, end) - max(one.ended_at - one.seconds, begin)) for one in migrations)
