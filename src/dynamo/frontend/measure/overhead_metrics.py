"""What KV-aware routing costs, by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dynamo.router.overhead import Overhead
from dynamo.runtime.instruments import Histogram, MetricFamily
from dynamo.serving.models import ServedModel

_PARTS: tuple[tuple[str, str, Callable[[Overhead], Histogram]], ...] = (
    ("block_hashing", "Hashing a prompt's blocks", lambda overhead: overhead.hashing),
    ("indexer_find_matches", "Finding who has them cached", lambda overhead: overhead.matching),
    ("scheduling", "Weighing the workers and booking one", lambda overhead: overhead.choosing),
    ("total", "All of it; waiting for a worker to be free is not in it", lambda overhead: overhead.total),
)


def overhead_metrics(router_id: int, models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    """Routers that ignore caches have none."""
    overheads = [
        ({"model": model.name, "router_id": str(router_id)}, overhead)
        for model in models
        if (overhead := model.router.stats.overhead)
    ]
    for part, help, read in _PARTS:
        name = f"dynamo_router_overhead_{part}_ms"
        samples = [sample for labels, overhead in overheads for sample in read(overhead).samples(name, labels, 1000)]
        yield MetricFamily(name, f"{help}, in milliseconds", "histogram", samples)
