"""in=dyn://NAMESPACE.COMPONENT.ENDPOINT: a worker that frontends find by discovery."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.cli.run.grammar import Command, UsageError
from dynamo.cli.run.local import engine_served
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import DEFAULT_NAMESPACE, EndpointId
from dynamo.settings.frontend import FrontendSettings


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    endpoint_id = worker_endpoint(command, environ)
    async with engine_served(runtime, command, environ, endpoint_id, kv_events=True) as card:
        print(f"worker for '{card.name}' at {endpoint_id}", file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0


def worker_endpoint(command: Command, environ: Mapping[str, str]) -> EndpointId:
    """Where the worker serves: a namespace that `in=` leaves out is that of --namespace, else of DYN_NAMESPACE."""
    settings = command.read(FrontendSettings, environ)
    endpoint_id = EndpointId.parse(command.input.target, settings.namespace or DEFAULT_NAMESPACE)
    asked = command.flags.get("namespace")
    if asked is not None and endpoint_id.namespace != asked:
        raise UsageError(f"the namespace is given twice: in={endpoint_id} and --namespace {asked}")
    return endpoint_id
