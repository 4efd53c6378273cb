"""in=dyn://NAMESPACE.COMPONENT.ENDPOINT: a worker that frontends find by discovery."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.run.grammar import Command
from dynamo.run.local import engine_served
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    endpoint_id = EndpointId.parse(command.input.target)
    async with engine_served(runtime, command, environ, endpoint_id) as card:
        print(f"worker for '{card.name}' at {endpoint_id}", file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0
