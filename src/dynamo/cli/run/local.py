"""An engine in this process, started as a worker from dynamo-run's command line."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import structs

from dynamo.cli.run.grammar import Command, UsageError
from dynamo.engines.registry import EngineSpec
from dynamo.protocols.card import ModelCard
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import DEFAULT_NAMESPACE, EndpointId
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.worker import StepTraceSettings
from dynamo.worker import life, model
from dynamo.worker.config import engine_spec


@asynccontextmanager
async def start_and_serve(
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
    spec = structs.replace(spec_of(command, environ), disable_kv_routing=not kv_events)
    async with life.start_and_serve(runtime, spec, endpoint_id) as card:
        if not card.takes_requests and command.input.kind != "dyn":
            raise UsageError(f"a {card.worker_type.value} worker answers no requests itself: use in=dyn://...")
        yield card


def served_name(command: Command) -> str:
    """The name under which the engine of this process will serve its model."""
    return model.served_name(spec_of(command, {}))


def spec_of(command: Command, environ: Mapping[str, str]) -> EngineSpec:
    assert command.output.engine
    return engine_spec(
        command,
        engine=command.output.engine,
        step_trace=StepTraceSettings.from_env(environ),
        file=command.output.file,
        environ=environ,
    )


async def run_worker(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    """in=dyn://NAMESPACE.COMPONENT.ENDPOINT: a worker that frontends find by discovery."""
    endpoint_id = worker_endpoint(command, environ)
    async with start_and_serve(runtime, command, environ, endpoint_id, kv_events=True) as card:
        print(f"worker for '{card.name}' at {endpoint_id}", file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0


def worker_endpoint(command: Command, environ: Mapping[str, str]) -> EndpointId:
    """Where the worker serves."""
    return _endpoint("in", command.input.target, command, environ)


def served_endpoint(command: Command, environ: Mapping[str, str]) -> EndpointId | None:
    """The only endpoint whose workers answer, that of out=dyn://PATH; None for all."""
    return _endpoint("out", command.output.path, command, environ) if command.output.path else None


def _endpoint(side: str, path: str, command: Command, environ: Mapping[str, str]) -> EndpointId:
    """A namespace that `path` leaves out is that of --namespace, else of DYN_NAMESPACE."""
    settings = command.read(FrontendSettings, environ)
    endpoint_id = EndpointId.parse(path, settings.namespace or DEFAULT_NAMESPACE)
    asked = command.flags.get("namespace")
    if asked is not None and endpoint_id.namespace != asked:
        raise UsageError(f"the namespace is given twice: {side}={endpoint_id} and --namespace {asked}")
    return endpoint_id


async def run_follower(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    """in=none: a follower node of an engine that spans several nodes; requests go to the leader."""
    async with life.start_engine(runtime, spec_of(command, environ)):
        follows = f"node {command.node_rank} of {command.num_nodes} follows {command.leader_addr}"
        print(follows, file=sys.stderr, flush=True)
        await runtime.wait_for_shutdown()
    return 0
