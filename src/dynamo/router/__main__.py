"""A KV-aware router as a process of its own: `python -m dynamo.router --endpoint NAMESPACE.COMPONENT.ENDPOINT`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

import uvloop

from dynamo.protocols.errors import StartError
from dynamo.router.config import RouterConfig
from dynamo.router.flags import add_router_flags, router_flags
from dynamo.router.service import COMPONENT, serve_router
from dynamo.router.standalone import StandaloneRouter
from dynamo.runtime import DistributedRuntime, EndpointId, RuntimeConfig
from dynamo.runtime.flags import FlagParser
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.open_files import raise_limit
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit, unless_shut_down

OPEN_FILES = 65536


def parser() -> argparse.ArgumentParser:
    flags = FlagParser("python -m dynamo.router", __doc__)
    flags.add_argument("--endpoint", required=True, help="the workers to route to: namespace.component.endpoint")
    flags.add_argument(
        "--router-block-size",
        type=int,
        metavar="TOKENS",
        help="tokens in a KV block (the workers' model card says it; DYN_ROUTER_BLOCK_SIZE)",
    )
    flags.add_argument("--discovery-backend", help="memory, file or etcd (file; DYN_DISCOVERY_BACKEND)")
    flags.add_argument("--request-plane", help="memory, tcp or nats (tcp; DYN_REQUEST_PLANE)")
    flags.add_argument("--event-plane", help="memory, zmq or nats (zmq; DYN_EVENT_PLANE)")
    flags.add_argument("-v", action="count", default=0, dest="verbosity", help="log more: -v debug, -vv all")
    add_router_flags(flags)
    return flags


def main(argv: list[str] | None = None) -> None:
    flags = parser().parse_args(argv)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=flags.verbosity))
        endpoint = EndpointId.exact(flags.endpoint)
        config = RouterConfig.from_env(os.environ, **{**router_flags(flags), "router_mode": flags.router_mode or "kv"})
        if config.mode != "kv":
            raise ValueError(f"python -m dynamo.router is a KV router: --router-mode must be kv, not {config.mode}")
        block_size = read_block_size(flags.router_block_size, os.environ)
        network = RuntimeConfig.from_env(
            os.environ,
            discovery_backend=flags.discovery_backend,
            request_plane=flags.request_plane,
            event_plane=flags.event_plane,
        )
    except (ValueError, StartError) as error:
        raise fail(str(error), code=2, error=error) from None
    raise_limit(OPEN_FILES)
    uvloop.run(serve(endpoint, config, block_size, network))


def read_block_size(flag: int | None, environ: Mapping[str, str]) -> int | None:
    source, text = "--router-block-size", "" if flag is None else str(flag)
    if flag is None:
        source, text = "DYN_ROUTER_BLOCK_SIZE", environ.get("DYN_ROUTER_BLOCK_SIZE", "").strip()
        if not text:
            return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{source} must be a whole number of at least 1, not '{text}'")
    return int(text)


async def serve(endpoint: EndpointId, config: RouterConfig, block_size: int | None, network: RuntimeConfig) -> None:
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))

    async def work() -> None:
        router = StandaloneRouter(runtime, endpoint, config, block_size)
        try:
            if block_size is None:
                print(f"waiting for a worker at {endpoint} to tell its block size", file=sys.stderr, flush=True)
            if await unless_shut_down(runtime, router.start()):
                await serve_router(runtime, endpoint.namespace, router, on_found)
        finally:
            await router.close()

    def on_found() -> None:
        where = EndpointId(endpoint.namespace, COMPONENT)
        print(f"router for {endpoint} serves {where}", file=sys.stderr, flush=True)

    await run_until_signalled(runtime, work())


if __name__ == "__main__":
    main()
