"""in=none: a follower node of an engine that spans several nodes; requests go to the leader."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.run.grammar import Command
from dynamo.run.local import start_follower
from dynamo.runtime import DistributedRuntime


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    engine = await start_follower(runtime, command, environ)
    print(f"node {command.node_rank} of {command.num_nodes} follows {command.leader_addr}", file=sys.stderr, flush=True)
    try:
        await runtime.wait_for_shutdown()
    finally:
        await engine.close()
    return 0
