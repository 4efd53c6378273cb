"""in=none: a follower node of an engine that spans several nodes; requests go to the leader."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.cli.run.grammar import Command
from dynamo.cli.run.local import spec_of
from dynamo.runtime import DistributedRuntime
from dynamo.worker.life import engine_started


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    async with engine_started(runtime, spec_of(command, environ)):
        follows = f"node {command.node_rank} of {command.num_nodes} follows {command.leader_addr}"
        print(follows, file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0
