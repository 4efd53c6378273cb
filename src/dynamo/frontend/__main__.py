"""`python -m dynamo.frontend`: the HTTP server on discovered workers."""

from __future__ import annotations

import argparse
import os
import sys

import uvloop

from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.models import Models
from dynamo.frontend.server import Server
from dynamo.model import HubConfig
from dynamo.router import add_router_flags, router_flags
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.config import PLANES
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging, quiet
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m dynamo.frontend", description=__doc__, allow_abbrev=False)
    flags.add_argument("--http-host", metavar="ADDRESS", help="address to listen on (127.0.0.1; DYN_HTTP_HOST)")
    flags.add_argument("--http-port", type=int, metavar="PORT", help="port to listen on (8080; DYN_HTTP_PORT)")
    flags.add_argument("--discovery-backend", help="memory, file or etcd (file; DYN_DISCOVERY_BACKEND)")
    flags.add_argument("--request-plane", help=f"{', '.join(PLANES)} (tcp; DYN_REQUEST_PLANE)")
    flags.add_argument("--event-plane", help="memory, zmq or nats (zmq; DYN_EVENT_PLANE)")
    flags.add_argument("--ignore-unknown-fields", action="store_true", default=None, help="accept what we do not know")
    flags.add_argument("-i", "--interactive", action="store_true", help="a chat on this terminal instead of HTTP")
    flags.add_argument("-v", action="count", default=0, dest="verbosity", help="log more: -v debug, -vv all")
    add_router_flags(flags)
    return flags


def main(argv: list[str] | None = None) -> None:
    flags = parser().parse_args(argv)
    try:
        environ = quiet(os.environ) if flags.interactive else os.environ
        configure_dynamo_logging(LogConfig.from_env(environ, verbosity=flags.verbosity))
        config = FrontendConfig.from_env(
            os.environ,
            host=flags.http_host,
            port=flags.http_port,
            ignore_unknown_fields=flags.ignore_unknown_fields,
            **router_flags(flags),
        )
        network = RuntimeConfig.from_env(
            os.environ,
            discovery_backend=flags.discovery_backend,
            request_plane=flags.request_plane,
            event_plane=flags.event_plane,
        )
    except Exception as error:
        raise fail(str(error), code=2, error=error) from None
    uvloop.run(interact(config, network) if flags.interactive else serve(config, network))


async def interact(config: FrontendConfig, network: RuntimeConfig) -> None:
    from dynamo.frontend.terminal import talk

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise fail("--interactive is a chat and needs a terminal", code=2)
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    models = Models(runtime, config.router, HubConfig.from_env(os.environ))
    await run_until_signalled(runtime, talk(runtime, models, os.environ))


async def serve(config: FrontendConfig, network: RuntimeConfig) -> None:
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    server = Server(runtime, config, HubConfig.from_env(os.environ))

    async def work() -> None:
        try:
            await server.start()
            print(f"serving on {server.url}", file=sys.stderr, flush=True)
            await server.serve()
        finally:
            await server.stop()

    await run_until_signalled(runtime, work())


if __name__ == "__main__":
    main()
