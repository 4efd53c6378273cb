"""Names of metrics and labels, by the names under which ai-dynamo's programs import them."""

from dynamo.compat.prometheus_names import (
    component_names,
    frontend_service,
    kv_publisher,
    kvrouter,
    kvstats,
    labels,
    model_info,
    name_prefix,
    router,
)

__all__ = [
    "component_names",
    "frontend_service",
    "kv_publisher",
    "kvrouter",
    "kvstats",
    "labels",
    "model_info",
    "name_prefix",
    "router",
]
