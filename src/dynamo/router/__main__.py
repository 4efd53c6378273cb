"""A KV-aware router as a process of its own: `python -m dynamo.router --endpoint NAMESPACE.COMPONENT.ENDPOINT`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Annotated, Literal

import uvloop
from msgspec import Meta

from dynamo.process.open_files import raise_limit
from dynamo.process.readiness import report_ready
from dynamo.protocols.errors import StartError
from dynamo.router.config import RoutingConfig
from dynamo.router.standalone.service import COMPONENT, serve_router
from dynamo.router.standalone.standalone import StandaloneRouter
from dynamo.runtime import DistributedRuntime, EndpointId, RuntimeConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit, unless_shut_down
from dynamo.settings import Setting, Settings, given
from dynamo.settings.arguments import FlagParser
from dynamo.settings.foreign import ROUTER_FLAGS, accept, log_accepted
from dynamo.settings.network import NetworkSettings

OPEN_FILES = 65536


class StandaloneSettings(Settings, frozen=True, kw_only=True):
    endpoint: Annotated[
        str, Setting("--endpoint", metavar="NAME", help="the workers to route to: namespace.component.endpoint")
    ]
    block_size: Annotated[
        int | None,
        Meta(ge=1),
        Setting(
            "--router-block-size",
            "DYN_ROUTER_BLOCK_SIZE",
            "tokens in a KV block",
            metavar="TOKENS",
            default="from the workers' model card",
        ),
    ] = None


class StandaloneRouterConfig(RoutingConfig, frozen=True, kw_only=True):
    mode: Annotated[Literal["kv"], Setting("--router-mode", help="how to choose a worker", metavar="MODE")] = "kv"


def parser() -> argparse.ArgumentParser:
    flags = FlagParser("python -m dynamo.router", __doc__, StandaloneSettings, NetworkSettings, StandaloneRouterConfig)
    accept(flags, ROUTER_FLAGS)
    return flags


def main(argv: list[str] | None = None) -> None:
    parsed = parser().parse_args(argv)
    flags = vars(parsed)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=parsed.verbosity))
        asked = StandaloneSettings.from_env(os.environ, **given(flags, StandaloneSettings))
        endpoint = EndpointId.exact(asked.endpoint)
        config = StandaloneRouterConfig.from_env(os.environ, **given(flags, StandaloneRouterConfig))
        network = RuntimeConfig.from_env(os.environ, **given(flags, NetworkSettings))
    except (ValueError, StartError) as error:
        raise fail(str(error), code=2, error=error) from None
    raise_limit(OPEN_FILES)
    log_accepted(flags, ROUTER_FLAGS)
    uvloop.run(serve(endpoint, config, asked.block_size, network))


async def serve(endpoint: EndpointId, config: RoutingConfig, block_size: int | None, network: RuntimeConfig) -> None:
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))

    async def work() -> None:
        router = StandaloneRouter(runtime, endpoint, config, block_size)
        try:
            if block_size is None:
                print(f"waiting for a worker at {endpoint} to report its block size", file=sys.stderr, flush=True)
            if await unless_shut_down(runtime, router.start()):
                await serve_router(runtime, endpoint.namespace, router, on_found)
        finally:
            await router.close()

    def on_found() -> None:
        where = EndpointId(endpoint.namespace, COMPONENT)
        print(f"router for {endpoint} serves {where}", file=sys.stderr, flush=True)
        report_ready(os.environ)

    await run_until_signalled(runtime, work())


if __name__ == "__main__":
    main()
