"""in=dyn://NAMESPACE.COMPONENT.ENDPOINT: a worker that frontends find by discovery."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.run.grammar import Command
from dynamo.run.local import engine_served
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    place = EndpointId.parse(command.input.target)
    async with engine_served(runtime, command, environ, place) as card:
        print(f"worker for '{card.name}' at {place}", file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0
