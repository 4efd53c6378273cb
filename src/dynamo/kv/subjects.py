"""The subjects that workers and routers publish on."""

KV_EVENTS = "kv-events"
KV_METRICS = "kv_metrics"
BOOKINGS = "active_sequences_events"
SNAPSHOT_ENDPOINT = "kv_snapshot"

LOAD_REPORT_SECONDS = 5.0
"""How often a worker reports its load although it has not changed: a message may have been lost."""

ComponentName = tuple[str, str]
"""Namespace and component."""


def subject(component: ComponentName, topic: str) -> str:
    return f"namespace.{component[0]}.component.{component[1]}.{topic}"
