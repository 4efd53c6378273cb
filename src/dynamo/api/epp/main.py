"""`python -m dynamo.epp`: the picker as a process."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import uvloop
from msgspec import structs

from dynamo.api.epp.endpoints import Endpoints
from dynamo.api.epp.metrics import picker_families
from dynamo.api.epp.picker import EndpointPicker
from dynamo.api.epp.pool import PoolFollower
from dynamo.api.epp.stock import KvEventPorts, StockServers
from dynamo.api.epp.workers import FollowedWorkers
from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.model import HubConfig
from dynamo.model.card import build_card
from dynamo.model.source import default_name, resolve
from dynamo.process.addresses import listening_address
from dynamo.process.open_files import raise_limit
from dynamo.process.readiness import report_ready
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType
from dynamo.protocols.errors import StartError
from dynamo.router.config import RoutingConfig
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.discovery.kubernetes.config import KubernetesSettings
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.names import NamespaceFilter
from dynamo.runtime.network import Local
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit, unless_shut_down
from dynamo.serving.models import Models
from dynamo.settings import Setting, given
from dynamo.settings.arguments import FlagParser
from dynamo.settings.epp import EppSettings
from dynamo.settings.network import NetworkSettings

if TYPE_CHECKING:
    from dynamo.api.epp.server import PickerServer

OPEN_FILES = 65536
RESTART_SECONDS = 60.0
"""How long a model without servers is kept in memory."""
COMMAND = "python -m dynamo.epp"


class EppRouting(RoutingConfig, frozen=True, kw_only=True):
    """A picker sends nothing itself, and so copies no prefixes."""

    mode: Annotated[Literal["kv"], Setting("--router-mode", help="how to choose a server", metavar="MODE")] = "kv"


def parser() -> argparse.ArgumentParser:
    return FlagParser(COMMAND, __doc__, EppSettings, NetworkSettings, EppRouting)


def main(argv: list[str] | None = None) -> None:
    parsed = parser().parse_args(argv)
    flags = vars(parsed)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=parsed.verbosity))
        asked = EppSettings.from_env(os.environ, **given(flags, EppSettings))
        routing = EppRouting.from_env(os.environ, **given(flags, EppRouting))
        network = RuntimeConfig.from_env(os.environ, **given(flags, NetworkSettings))
    except (ValueError, StartError) as error:
        raise fail(str(error), code=2, error=error) from None
    raise_limit(OPEN_FILES)
    uvloop.run(serve(asked, routing, network, os.environ))


async def serve(asked: EppSettings, routing: RoutingConfig, network: RuntimeConfig, environ: Mapping[str, str]) -> None:
    standalone = asked.mode == "standalone"
    if standalone:
        status = network.status
        network = structs.replace(RuntimeConfig.in_process(environ), status=status)
        routing = structs.replace(routing, use_kv_events=routing.use_kv_events and asked.kv_event_port > 0)
    routing = structs.replace(routing, copy_prefixes=False)
    local = Local()
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network, local=local))

    async def work() -> None:
        async with AsyncExitStack() as closing:
            starting = _start(closing, runtime, local, asked, routing, environ)
            server = await unless_shut_down(runtime, starting)
            if server is None:
                return
            how = "TLS" if asked.tls_cert_path else "no TLS: --tls-cert-path and --tls-key-path"
            health = f", health on {server.health_address}" if server.health_address else ""
            print(f"picking on {server.address} ({how}){health}", file=sys.stderr, flush=True)
            report_ready(environ)
            runtime.set_health_status(True)
            await runtime.wait_for_shutdown()
            await server.stop(network.graceful_shutdown_timeout)

    await run_until_signalled(runtime, work())


async def _start(
    closing: AsyncExitStack,
    runtime: DistributedRuntime,
    local: Local,
    asked: EppSettings,
    routing: RoutingConfig,
    environ: Mapping[str, str],
) -> PickerServer:
    try:
        from dynamo.api.epp.server import PickerServer
    except ModuleNotFoundError as error:
        raise StartError(f"the picker needs gRPC ({error}): pip install 'dynamo-serving[gateway]'") from error
    hub = HubConfig.from_env(environ)
    endpoints = Endpoints()
    serves = NamespaceFilter(asked.namespace, asked.namespace_prefix)
    limit_to: Callable[[Sequence[str]], None] = endpoints.limit_to
    if asked.mode == "standalone":
        card = await asyncio.to_thread(_card, asked, hub)
        ports = KvEventPorts(asked.kv_event_port if routing.use_kv_events else None, asked.kv_replay_port or None)
        stock = StockServers(card, ports, runtime.config.without_status(), local, endpoints)
        closing.push_async_callback(stock.close)
        stock.start()
        stock.follow(asked.endpoints)
        await stock.settle()
        limit_to, serves = stock.follow, NamespaceFilter()
    else:
        workers = FollowedWorkers(runtime, endpoints, asked.target_port, serves)
        closing.push_async_callback(workers.close)
        await workers.start()
    models = Models(runtime, routing, hub, serves, restart_seconds=RESTART_SECONDS)
    closing.push_async_callback(models.close)
    await models.start()
    if asked.pool:
        try:
            api = KubernetesApi(find_access(environ), KubernetesSettings.from_env(environ).namespace)
        except ClusterAccessError as error:
            raise StartError(f"--pool {asked.pool}: {error}") from error
        await closing.enter_async_context(api)
        follower = PoolFollower(api, asked.pool, limit_to)
        closing.push_async_callback(follower.close)
        await follower.start()
    picker = EndpointPicker(models, endpoints, names_workers=asked.mode == "dynamo")
    if runtime.status:
        runtime.status.add_families(lambda: picker_families(picker.counts, endpoints, models))
    certificate = None
    if asked.tls_cert_path and asked.tls_key_path:
        certificate = (Path(asked.tls_cert_path), Path(asked.tls_key_path))
    server = PickerServer(
        picker,
        asked.host or listening_address(environ),
        asked.port,
        asked.health_port,
        certificate=certificate,
        body_limit=asked.body_limit_mb << 20,
        ready=lambda: len(endpoints) > 0,
    )
    closing.push_async_callback(server.stop)
    await server.start()
    return server


def _card(asked: EppSettings, hub: HubConfig) -> ModelCard:
    """What a worker of this model would say of it; blocks while it reads, or downloads the tokenizer."""
    source = asked.model_path or asked.model_name or ""
    local = resolve(source, config=hub, weights=False)
    return build_card(
        local,
        name=asked.model_name or default_name(source),
        model_type=ModelType.Backend,
        kv_cache_block_size=asked.block_size,
        runtime_config=ModelRuntimeConfig(max_num_batched_tokens=asked.max_num_batched_tokens, guided_decoding=True),
    )
