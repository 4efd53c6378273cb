"""How many batches of KV events engines have lost before this process could take them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from dynamo.runtime import Component


class DroppedEvents:
    """Of all ranks of one instance."""

    def __init__(self) -> None:
        self.batches = 0

    def count(self, batches: int) -> None:
        self.batches += batches

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "dynamo_component_kv_publisher_engines_dropped_events",
            "Batches of KV events that are missing between two of an engine and could not be had again",
            self.batches,
        )


def dropped_events(component: Component) -> DroppedEvents:
    """The count of this runtime's instance of the component, created and shown on first use."""

    def create() -> DroppedEvents:
        dropped = DroppedEvents()
        if status := component.runtime.status:
            labels = {
                "dynamo_namespace": component.namespace,
                "dynamo_component": component.name,
                "worker_id": f"{component.runtime.instance_id:x}",
            }
            status.add_registry(dropped, labels)
        return dropped

    return component.runtime.shared((DroppedEvents, component.namespace, component.name), create)
