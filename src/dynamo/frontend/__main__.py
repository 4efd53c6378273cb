"""`python -m dynamo.frontend`: the HTTP server on discovered workers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import uvloop

from dynamo.frontend.config import FrontendConfig, nothing_served_hint
from dynamo.frontend.measure.request_trace import request_trace_from_env
from dynamo.frontend.measure.tracing import tracing_from_env
from dynamo.frontend.processes import Parent, supervise
from dynamo.frontend.server import Server
from dynamo.frontend.siblings import Siblings
from dynamo.model import HubConfig
from dynamo.process.open_files import raise_limit
from dynamo.process.readiness import report_ready
from dynamo.protocols.errors import StartError
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging, for_chat
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit, unless_shut_down
from dynamo.serving.models import Models
from dynamo.settings import Setting, Settings, given
from dynamo.settings.arguments import FlagParser
from dynamo.settings.foreign import FRONTEND_FLAGS, accept, log_accepted
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.network import NetworkSettings
from dynamo.settings.router import RouterSettings

log = logging.getLogger(__name__)


class TerminalSettings(Settings, frozen=True, kw_only=True):
    interactive: Annotated[bool, Setting("--interactive", help="a chat on this terminal instead of HTTP")] = False


def parser() -> argparse.ArgumentParser:
    tables = (TerminalSettings, FrontendSettings, NetworkSettings, RouterSettings)
    flags = FlagParser("python -m dynamo.frontend", __doc__, *tables)
    accept(flags, FRONTEND_FLAGS)
    flags.add_argument("-i", action="store_const", const="true", dest="interactive", help="like --interactive")
    flags.add_argument("--http-worker", nargs=3, metavar=("INDEX", "FOLDER", "SOCKET"), help=argparse.SUPPRESS)
    return flags


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    flags = parser().parse_args(argv)
    try:
        interactive = TerminalSettings.from_env({}, **given(vars(flags), TerminalSettings)).interactive
        logged = for_chat if interactive else LogConfig.from_env
        configure_dynamo_logging(logged(os.environ, verbosity=flags.verbosity))
        config = FrontendConfig.from_env(os.environ, **given(vars(flags), FrontendSettings, RouterSettings))
        network = RuntimeConfig.from_env(os.environ, **given(vars(flags), NetworkSettings)).without_status()
    except Exception as error:
        raise fail(str(error), code=2, error=error) from None
    raise_limit(config.open_files)
    if not flags.http_worker:
        log_accepted(vars(flags), FRONTEND_FLAGS)
    if interactive:
        uvloop.run(interact(config, network))
        return
    if flags.http_worker:
        index, folder, number = flags.http_worker
        uvloop.run(serve(config, network, Siblings(Path(folder), int(index), config.workers), Parent(int(number))))
    elif config.workers > 1:
        uvloop.run(serve_many(config, argv))
    else:
        uvloop.run(serve(config, network))


async def interact(config: FrontendConfig, network: RuntimeConfig) -> None:
    from dynamo.cli.chat import chat_with_workers

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise fail("--interactive is a chat and needs a terminal", code=2)
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    models = Models(
        runtime,
        config.router,
        HubConfig.from_env(os.environ),
        config.serves,
        None,
        config.migration_limit,
        config.migration_max_seq_len,
    )
    await run_until_signalled(runtime, chat_with_workers(runtime, models, os.environ))


async def serve(
    config: FrontendConfig, network: RuntimeConfig, siblings: Siblings | None = None, parent: Parent | None = None
) -> None:
    network = network.with_graceful_shutdown_timeout(config.graceful_shutdown_timeout)
    try:
        tracing = tracing_from_env(os.environ)
        request_trace = request_trace_from_env(os.environ)
    except ValueError as error:
        raise fail(str(error), code=2, error=error) from None
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    server = Server(
        runtime,
        config,
        HubConfig.from_env(os.environ),
        siblings=siblings,
        tracing=tracing,
        request_trace=request_trace,
    )

    async def work() -> None:
        try:
            await unless_shut_down(runtime, server.start())
            if runtime.is_shutting_down:
                return
            if config.tls_cert_path:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload_certificate)
            if parent is None:
                print_address(config, server.url)
                if server.grpc:
                    print(f"serving gRPC on {server.grpc.address}", file=sys.stderr, flush=True)
                if not server.models.served():
                    print(nothing_served_hint(config, network, server.models.failures()), file=sys.stderr, flush=True)
                report_ready(os.environ)
                await server.serve()
            else:
                await serve_as_child(parent)
        finally:
            await server.stop()

    async def serve_as_child(parent: Parent) -> None:
        parent.report_ready()
        orphaned = asyncio.create_task(exit_with(parent, runtime))
        try:
            await server.serve()
        finally:
            orphaned.cancel()
            await asyncio.gather(orphaned, return_exceptions=True)

    await run_until_signalled(runtime, work())


async def exit_with(parent: Parent, runtime: DistributedRuntime) -> None:
    await parent.gone()
    log.warning("the parent process is gone: leaving too")
    runtime.shutdown()


async def serve_many(config: FrontendConfig, argv: list[str]) -> NoReturn:
    def command(index: int, port: int, folder: Path, number: int) -> list[str]:
        child = ["--http-port", str(port), "--http-worker", str(index), str(folder), str(number)]
        return [sys.executable, "-m", "dynamo.frontend", *argv, *child]

    def serving(port: int) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        print_address(config, f"{'https' if config.tls_cert_path else 'http'}://{host}:{port}")
        report_ready(os.environ)

    try:
        # Without a certificate to reload, SIGHUP would end the children.
        passed_on = (signal.SIGHUP,) if config.tls_cert_path else ()
        code = await supervise(config.workers, config.host, config.port, command, serving, passed_on)
    except StartError as error:
        raise fail(str(error), error=error) from None
    sys.exit(code)


def print_address(config: FrontendConfig, url: str) -> None:
    print(f"serving on {url}", file=sys.stderr, flush=True)
    if config.is_local:
        log.info("only this machine can connect; --http-host 0.0.0.0 opens the port to others")
    elif not config.api_keys:
        log.warning("anyone who can reach %s may use it; --api-key requires a key", url)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
