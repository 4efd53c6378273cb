"""What `dynamo inspect` shows of a frontend: its streams, bookings and queues."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from dynamo.frontend.state import Frontend
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.inspection import Inspection, Row


def add_tables(inspection: Inspection, frontend: Frontend) -> None:
    inspection.add("streams", lambda: _streams(frontend))
    inspection.add("bookings", lambda: _reservations(frontend))
    inspection.add("queues", lambda: _queues(frontend))


def _streams(frontend: Frontend) -> Iterator[Row]:
    """The oldest first."""
    now = perf_counter()
    for record in frontend.requests.oldest(len(frontend.requests)):
        record.settle()
        yield {
            "request": record.request_id,
            "model": record.model,
            "stage": record.stage or ("streaming" if record.time_to_first_token is not None else "arriving"),
            "worker": ",".join(worker_name(worker) for worker in record.workers),
            "in": record.input_tokens,
            "out": record.output_tokens,
            "migrations": sum(delivery.history.migrations for delivery in record.deliveries),
            "seconds": round(now - record.started, 3),
        }


def _reservations(frontend: Frontend) -> Iterator[Row]:
    for model in frontend.models.versions():
        for rank in model.router.status():
            yield {
                "model": model.name,
                "worker": worker_name(rank.worker.worker_id),
                "rank": rank.worker.dp_rank,
                "requests": rank.requests,
                "blocks": rank.active_blocks,
                "prefill_tokens": rank.prefill_tokens,
                "cached_blocks": rank.cached_blocks,
            }


def _queues(frontend: Frontend) -> Iterator[Row]:
    for model in frontend.models.served():
        router = model.router
        yield {"queue": f"router of {model.name}", "waiting": router.waiting, "tokens": router.waiting_tokens}
