"""An engine in this process, started as a worker from dynamo-run's command line."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import structs

from dynamo.cli.run.grammar import Command, UsageError
from dynamo.protocols.card import ModelCard
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.admission import request_limit
from dynamo.settings.worker import StepTraceSettings
from dynamo.worker import life, model
from dynamo.worker.config import WorkerConfig


@asynccontextmanager
async def engine_served(
    runtime: DistributedRuntime,
    command: Command,
    environ: Mapping[str, str],
    endpoint_id: EndpointId,
    *,
    kv_events: bool,
) -> AsyncIterator[ModelCard]:
    """Start the engine, serve it at `endpoint_id` while the block runs, then drain and close it.

    KV events cost some engines a lot: `kv_events` says whether anything routes by the engine's cache.
    """
    if command.input.kind == "http" or sys.stderr.isatty():
        print(f"loading {served_name(command)} …", file=sys.stderr, flush=True)
    steps = StepTraceSettings.from_env(environ)
    config = structs.replace(worker_config(command), kv_events=kv_events, step_trace=steps)
    async with life.engine_served(runtime, config, environ, endpoint_id) as card:
        if not card.takes_requests and command.input.kind != "dyn":
            raise UsageError(f"a {card.worker_type.value} worker answers no requests itself: use in=dyn://...")
        yield card


def served_name(command: Command) -> str:
    """The name under which the engine of this process will serve its model."""
    return model.served_name(worker_config(command))


def worker_config(command: Command) -> WorkerConfig:
    assert command.output.engine
    return WorkerConfig(
        engine=command.output.engine,
        file=command.output.file,
        model=command.model,
        model_config=command.model_config,
        model_name=command.model_name,
        context_length=command.context_length,
        kv_cache_block_size=command.kv_cache_block_size,
        tool_call_parser=command.dyn_tool_call_parser,
        reasoning_parser=command.dyn_reasoning_parser,
        tensor_parallel_size=command.tensor_parallel_size,
        base_gpu_id=command.base_gpu_id,
        num_nodes=command.num_nodes,
        node_rank=command.node_rank,
        leader_addr=command.leader_addr,
        extra_engine_args=command.extra_engine_args,
        arguments=command.arguments,
        migration_limit=command.migration_limit,
        request_limit=request_limit(command.engine_request_limit, command.engine_queue_limit),
    )
