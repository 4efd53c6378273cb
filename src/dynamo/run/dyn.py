"""in=dyn://NAMESPACE.COMPONENT.ENDPOINT: a worker that others find and send requests to."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.run.grammar import Command, UsageError
from dynamo.run.local import engine_served
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import DEFAULT_NAMESPACE, EndpointId
from dynamo.settings import given
from dynamo.settings.frontend import FrontendSettings


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    place = worker_endpoint(command, environ)
    async with engine_served(runtime, command, environ, place) as card:
        print(f"worker for '{card.name}' at {place}", file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0


def worker_endpoint(command: Command, environ: Mapping[str, str]) -> EndpointId:
    """Where the worker serves: a namespace that `in=` leaves out is that of --namespace, else of DYN_NAMESPACE."""
    settings = FrontendSettings.from_env(environ, **given(command.flags, FrontendSettings))
    place = EndpointId.parse(command.input.target, settings.namespace or DEFAULT_NAMESPACE)
    asked = command.flags.get("namespace")
    if asked is not None and place.namespace != asked:
        raise UsageError(f"the namespace is given twice: in={place} and --namespace {asked}")
    return place
