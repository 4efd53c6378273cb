"""Names and reachability: what a process needs to serve endpoints and to call other processes'."""

from typing import Any

from dynamo.compat.missing_names import missing
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


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
