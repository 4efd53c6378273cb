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
from typing import NoReturn

import uvloop
from msgspec import structs

from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.measure.tracing import TracingError, tracing_from_env
from dynamo.frontend.processes import Parent, supervise
from dynamo.frontend.server import Server
from dynamo.frontend.siblings import Siblings
from dynamo.model import HubConfig
from dynamo.protocols.errors import StartError
from dynamo.router import add_router_flags, router_flags
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.config import PLANES
from dynamo.runtime.flags import FlagParser
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging, quiet
from dynamo.runtime.open_files import raise_limit
from dynamo.runtime.process import fail, run_until_signalled, start_or_exit
from dynamo.serving.models import Models

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    flags = FlagParser("python -m dynamo.frontend", __doc__)
    http = flags.add_argument_group("HTTP")
    http.add_argument("--http-host", metavar="ADDRESS", help="address to listen on (127.0.0.1; DYN_HTTP_HOST)")
    http.add_argument("--http-port", type=int, metavar="PORT", help="port to listen on (8080; DYN_HTTP_PORT)")
    http.add_argument("--http-workers", type=int, metavar="N", help="processes on that port (1; DYN_HTTP_WORKERS)")
    http.add_argument("--tls-cert-path", type=Path, metavar="PEM", help="serve HTTPS (DYN_TLS_CERT_PATH)")
    http.add_argument("--tls-key-path", type=Path, metavar="PEM", help="key of the certificate (DYN_TLS_KEY_PATH)")
    http.add_argument(
        "--cors-allow-origin", action="append", metavar="ORIGIN",
        help="let web pages from there read answers; * for all; may be repeated (DYN_HTTP_CORS_ALLOW_ORIGIN)",
    )  # fmt: skip
    http.add_argument(
        "--sse-keep-alive-secs", type=float, metavar="SECONDS",
        help="send a comment this often until the first token (off; DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS)",
    )  # fmt: skip
    http.add_argument(
        "--ignore-unknown-fields", action="store_true", default=None,
        help="accept request fields we do not know (DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS)",
    )  # fmt: skip

    access = flags.add_argument_group("access")
    access.add_argument(
        "--api-key", action="append", metavar="KEY",
        help="ask for this key; may be repeated (DYN_API_KEY, several with commas, keeps it out of process lists)",
    )  # fmt: skip
    access.add_argument(
        "--protect-metrics",
        action="store_true",
        default=None,
        help="ask for a key at /metrics (DYN_PROTECT_METRICS)",
    )

    limits = flags.add_argument_group("limits", "seconds; 0 is no limit")
    limits.add_argument("--http-body-limit-mb", type=int, metavar="MB", help="(45; DYN_HTTP_BODY_LIMIT_MB)")
    limits.add_argument(
        "--max-concurrent-requests", type=int, metavar="N",
        help="refuse more than so many at once, per process (0: no limit; DYN_HTTP_MAX_CONCURRENT_REQUESTS)",
    )  # fmt: skip
    limits.add_argument(
        "--overload-status-code", type=int, metavar="STATUS",
        help="what those get, and requests that find all workers busy (503; DYN_HTTP_OVERLOAD_STATUS_CODE)",
    )  # fmt: skip
    for name, default, what in (
        ("header", "15", "to send a request's header"),
        ("body", "60", "to send a request's body"),
        ("idle", "75", "between two requests of a connection"),
        ("stall", "60", "to read what was sent"),
    ):
        limits.add_argument(
            f"--http-{name}-timeout-secs", type=float, metavar="SECONDS",
            help=f"time a client has {what} ({default}; DYN_HTTP_{name.upper()}_TIMEOUT_SECS)",
        )  # fmt: skip
    limits.add_argument(
        "--graceful-shutdown-timeout-secs", type=float, metavar="SECONDS",
        help="time running requests have after SIGTERM (30; DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS)",
    )  # fmt: skip

    network = flags.add_argument_group("network")
    network.add_argument("--namespace", help="serve models of this namespace only (DYN_NAMESPACE)")
    network.add_argument(
        "--namespace-prefix", metavar="PREFIX", help="serve models of namespaces that begin so (DYN_NAMESPACE_PREFIX)"
    )
    network.add_argument("--discovery-backend", help="memory, file or etcd (file; DYN_DISCOVERY_BACKEND)")
    network.add_argument("--request-plane", help=f"{', '.join(PLANES)} (tcp; DYN_REQUEST_PLANE)")
    network.add_argument("--event-plane", help="memory, zmq or nats (zmq; DYN_EVENT_PLANE)")

    add_router_flags(flags)

    observing = flags.add_argument_group("observing")
    observing.add_argument(
        "--metrics-prefix", metavar="PREFIX", help="names of the metrics (dynamo_frontend; DYN_METRICS_PREFIX)"
    )
    observing.add_argument("-v", action="count", default=0, dest="verbosity", help="log more: -v debug, -vv all")
    flags.add_argument("-i", "--interactive", action="store_true", help="a chat on this terminal instead of HTTP")
    flags.add_argument("--http-worker", nargs=3, metavar=("INDEX", "FOLDER", "SOCKET"), help=argparse.SUPPRESS)
    return flags


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    flags = parser().parse_args(argv)
    try:
        environ = quiet(os.environ) if flags.interactive else os.environ
        configure_dynamo_logging(LogConfig.from_env(environ, verbosity=flags.verbosity))
        config = FrontendConfig.from_env(
            os.environ,
            host=flags.http_host,
            port=flags.http_port,
            workers=flags.http_workers,
            tls_cert_path=flags.tls_cert_path,
            tls_key_path=flags.tls_key_path,
            api_keys=flags.api_key and tuple(flags.api_key),
            protect_metrics=flags.protect_metrics,
            cors_allow_origins=flags.cors_allow_origin and tuple(flags.cors_allow_origin),
            namespace=flags.namespace,
            namespace_prefix=flags.namespace_prefix,
            body_limit_mb=flags.http_body_limit_mb,
            header_timeout=flags.http_header_timeout_secs,
            body_timeout=flags.http_body_timeout_secs,
            idle_timeout=flags.http_idle_timeout_secs,
            stall_timeout=flags.http_stall_timeout_secs,
            max_concurrent_requests=flags.max_concurrent_requests,
            overload_status_code=flags.overload_status_code,
            ignore_unknown_fields=flags.ignore_unknown_fields,
            sse_keep_alive_secs=flags.sse_keep_alive_secs,
            graceful_shutdown_timeout=flags.graceful_shutdown_timeout_secs,
            metrics_prefix=flags.metrics_prefix,
            **router_flags(flags),
        )
        network = RuntimeConfig.from_env(
            os.environ,
            discovery_backend=flags.discovery_backend,
            request_plane=flags.request_plane,
            event_plane=flags.event_plane,
        ).without_status()
    except Exception as error:
        raise fail(str(error), code=2, error=error) from None
    raise_limit(config.open_files)
    if flags.interactive:
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
    from dynamo.serving.terminal import chat_with_workers

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise fail("--interactive is a chat and needs a terminal", code=2)
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    models = Models(runtime, config.router, HubConfig.from_env(os.environ), config.serves_namespace)
    await run_until_signalled(runtime, chat_with_workers(runtime, models, os.environ))


async def serve(
    config: FrontendConfig, network: RuntimeConfig, siblings: Siblings | None = None, parent: Parent | None = None
) -> None:
    # The requests have the time they were promised, whatever else a runtime would wait for.
    patience = max(network.graceful_shutdown_timeout, config.graceful_shutdown_timeout)
    network = structs.replace(network, graceful_shutdown_timeout=patience)
    try:
        tracing = tracing_from_env(os.environ)
    except TracingError as error:
        raise fail(str(error), code=2, error=error) from None
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    server = Server(
        runtime,
        config,
        HubConfig.from_env(os.environ),
        siblings=siblings,
        tracing=tracing,
    )

    async def work() -> None:
        try:
            await server.start()
            if config.tls_cert_path:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload_certificate)
            if parent is None:
                say_where(config, server.url)
                await server.serve()
            else:
                await serve_beside(parent)
        finally:
            await server.stop()

    async def serve_beside(parent: Parent) -> None:
        parent.tell_ready()
        orphaned = asyncio.create_task(leave_with(parent, runtime))
        try:
            await server.serve()
        finally:
            orphaned.cancel()
            await asyncio.gather(orphaned, return_exceptions=True)

    await run_until_signalled(runtime, work())


async def leave_with(parent: Parent, runtime: DistributedRuntime) -> None:
    await parent.gone()
    log.warning("the parent process is gone: leaving too")
    runtime.shutdown()


async def serve_many(config: FrontendConfig, argv: list[str]) -> NoReturn:
    def command(index: int, port: int, folder: Path, number: int) -> list[str]:
        child = ["--http-port", str(port), "--http-worker", str(index), str(folder), str(number)]
        return [sys.executable, "-m", "dynamo.frontend", *argv, *child]

    def serving(port: int) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        say_where(config, f"{'https' if config.tls_cert_path else 'http'}://{host}:{port}")

    try:
        # Children that have no certificate to read again would be ended by it.
        passed_on = (signal.SIGHUP,) if config.tls_cert_path else ()
        code = await supervise(config.workers, config.host, config.port, command, serving, passed_on)
    except StartError as error:
        raise fail(str(error), error=error) from None
    sys.exit(code)


def say_where(config: FrontendConfig, url: str) -> None:
    print(f"serving on {url}", file=sys.stderr, flush=True)
    if config.is_local:
        log.info("only this machine can connect; --http-host 0.0.0.0 opens the port to others")
    elif not config.api_keys:
        log.warning("everybody who can reach %s may use it; --api-key asks for a key", url)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
