"""Names and reachability: what a process needs to serve endpoints and to call other processes'."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dynamo.compat.missing_names import missing

if TYPE_CHECKING:
    from dynamo.runtime.annotated import Annotated
    from dynamo.runtime.client import Client, Stream
    from dynamo.runtime.config import RuntimeConfig
    from dynamo.runtime.context import Context
    from dynamo.runtime.distributed import Component, DistributedRuntime, Endpoint, Namespace
    from dynamo.runtime.names import EndpointId
    from dynamo.runtime.network import Local
    from dynamo.runtime.worker import dynamo_endpoint, dynamo_worker

__all__ = [
    "Annotated",
    "Client",
    "Component",
    "Context",
    "DistributedRuntime",
    "Endpoint",
    "EndpointId",
    "Local",
    "Namespace",
    "RuntimeConfig",
    "Stream",
    "dynamo_endpoint",
    "dynamo_worker",
]

# Loaded when first used: a command that only shows its help needs a module of this room, and no network.
_HOMES = {
    "Annotated": "annotated",
    "Client": "client",
    "Component": "distributed",
    "Context": "context",
    "DistributedRuntime": "distributed",
    "Endpoint": "distributed",
    "EndpointId": "names",
    "Local": "network",
    "Namespace": "distributed",
    "RuntimeConfig": "config",
    "Stream": "client",
    "dynamo_endpoint": "worker",
    "dynamo_worker": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise missing(__name__, name)
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
