"""The life of the HTTP server: listen, serve, refuse new requests, finish the running ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import ssl
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web

from dynamo.api.catalog import APIS, line_endpoints
from dynamo.api.host import KeptState, open_state
from dynamo.api.mcp.servers import mcp_servers
from dynamo.api.route import Api
from dynamo.frontend.app import application
from dynamo.frontend.callers import Callers
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.connection import Connection
from dynamo.frontend.gate import Gate
from dynamo.frontend.grpc import kserve_server
from dynamo.frontend.inspect_tables import add_tables
from dynamo.frontend.measure.loop_delay import LoopDelay
from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.request_trace import RequestTrace
from dynamo.frontend.measure.running import RunningRequests
from dynamo.frontend.measure.tracing import Tracing
from dynamo.frontend.siblings import Siblings
from dynamo.frontend.state import Frontend
from dynamo.frontend.tls import Certificate, TlsError
from dynamo.model import HubConfig
from dynamo.process.http_connection import BoundedReads, UnfinishedHeaders
from dynamo.process.open_files import FileReserve, grpc_connections
from dynamo.protocols.errors import StartError, Unavailable
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.metrics import MetricFamily
from dynamo.serving.models import Models

if TYPE_CHECKING:
    from dynamo.api.kserve.server import KserveServer

log = logging.getLogger(__name__)

BACKLOG = 1024
HANDSHAKE_TIMEOUT = 10.0
ABORT_SECONDS = 2.0
"""How long requests that are ended at shutdown may take to send their error."""


class ServerError(StartError):
    """The server cannot listen; the message names the fix."""


class Server:
    def __init__(
        self,
        runtime: DistributedRuntime,
        config: FrontendConfig,
        hub: HubConfig,
        *,
        siblings: Siblings | None = None,
        tracing: Tracing | None = None,
        request_trace: RequestTrace | None = None,
        apis: Sequence[Api] = APIS,
    ) -> None:
        self._apis = apis
        self._runtime = runtime
        self._config = config
        metrics = FrontendMetrics(config.metrics_prefix)
        callers = Callers(config, config.keys())
        self.models = Models(
            runtime,
            config.router,
            hub,
            config.serves,
            metrics.stages.prompts,
            config.migration_limit,
            config.migration_max_seq_len,
            config.model_restart_secs,
            config.model_wait_secs,
            # With the KV router a frontend hears the workers' events anyway.
            exchange=callers.share_workers or config.router.mode == "kv",
        )
        self._siblings = siblings
        self._tracing = tracing
        self._request_trace = request_trace
        self._loop_delay = LoopDelay()
        self._frontend = Frontend(
            self.models,
            RunningRequests(metrics, *((request_trace.ended, request_trace.payloads) if request_trace else ())),
            self._loop_delay,
            callers,
            runtime.inspection,
            runtime.events,
            siblings,
            strips_preamble=config.strip_anthropic_preamble,
            mcp=mcp_servers(config.mcp_servers, config.mcp_commands),
        )
        add_tables(runtime.inspection, self._frontend)
        self._gate = Gate(self._frontend, config, tracing)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._certificate: Certificate | None = None
        self._state: KeptState | None = None
        self.url = ""
        self.grpc: KserveServer | None = None

    async def start(self) -> None:
        """Listen first, so that a taken port is reported at once; then learn which models there are.

        One of several processes on a port listens last.
        """
        # The texts of these are what clients sent, and Python remembers each one that it has shown.
        for category in (BadContentDispositionHeader, BadContentDispositionParam):
            warnings.filterwarnings("ignore", category=category)
        if self._config.kserve_grpc_server:
            self.grpc = kserve_server(self._frontend, self._config)
        self._frontend.state = self._state = await open_state(
            self._config,
            self._frontend.callers.owners(),
            self.models,
            line_endpoints(self._apis),
            lambda: self._runtime.is_shutting_down,
            self._siblings.folder if self._siblings else None,
        )
        self._certificate = self._tls()
        tls = self._certificate.context if self._certificate else None
        app = application(self._gate, self._config, self._apis)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        if self._siblings is None:
            self._listener = await self._listen(self._runner, tls)
        else:
            await self._siblings.start(self._frontend.snapshot, self.models.merge_overrides)
        if self.grpc:
            await self.grpc.start()
        await self.models.start()
        await self._state.start()
        if self._siblings:
            # Only now: the kernel gives a process that listens its share of the connections, also one that knows no
            # models yet. The parent has reserved the port.
            self._listener = await self._listen(self._runner, tls)
        self._frontend.started = True
        self._loop_delay.start()
        self._frontend.recorder.start()
        if self._certificate:
            self._certificate.watch()
        # Objects that exist by now live as long as the process: later collections need not visit them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)

    async def serve(self) -> None:
        """Serve until the runtime shuts down, then refuse new requests and let running ones finish.

        Until the last one is done the port stays open, so that `/health` still answers.
        """
        await self._runtime.wait_for_shutdown()
        self._frontend.draining = True
        if self._state:
            await self._state.stop_batches()
        await self._drain()
        if self.grpc:
            await self.grpc.stop(self._config.graceful_shutdown_timeout)
        if self._listener:
            self._listener.close()

    async def stop(self) -> None:
        """End the requests that still run. May be called in any state."""
        self._frontend.draining = True
        self._loop_delay.stop()
        self._frontend.recorder.stop()
        if self.grpc:
            await self.grpc.stop()
        if self._certificate:
            self._certificate.stop()
        if self._listener:
            self._listener.close()
        if self._runner:
            await self._runner.cleanup()
        if self._siblings:
            await self._siblings.close()
        if self._state:
            await self._state.close()
        await self.models.close()
        if self._tracing:
            await asyncio.to_thread(self._tracing.close)
        if self._request_trace:
            await asyncio.to_thread(self._request_trace.close)

    async def families(self) -> list[MetricFamily]:
        """The metrics of all processes on this port."""
        return await self._frontend.families()

    def reload_certificate(self) -> None:
        """Read the certificate's files now rather than at the next check."""
        if self._certificate:
            self._certificate.reload()

    def _tls(self) -> Certificate | None:
        certificate, key = self._config.tls_cert_path, self._config.tls_key_path
        if certificate is None or key is None:
            return None
        try:
            return Certificate(Path(certificate), Path(key))
        except TlsError as error:
            raise ServerError(str(error)) from error

    async def _listen(self, runner: web.AppRunner, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Listen, and set `url`."""
        http, limits = runner.server, self._config.connection_limits
        reserve, headers = FileReserve(grpc_connections() if self.grpc else 0), UnfinishedHeaders()
        assert http
        host, port = self._config.host, self._config.http_port
        try:
            listener = await asyncio.get_running_loop().create_server(
                lambda: BoundedReads(Connection(http, limits, reserve, headers)),
                host,
                port,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if tls else None,
                backlog=BACKLOG,
                reuse_port=self._config.workers > 1 or None,
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        host, port = listener.sockets[0].getsockname()[:2]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        return listener

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._config.graceful_shutdown_timeout):
                await self._gate.idle()
                if self._state:
                    await self._state.background_idle()
        except TimeoutError:
            log.warning("%d requests did not finish in time and are ended now", self._gate.open_requests)
            self._frontend.requests.abort(Unavailable("The service shut down before the answer was complete."))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_SECONDS):
                    await self._gate.idle()


def cannot_listen(host: str, port: int, error: OSError) -> ServerError:
    if error.errno == errno.EADDRINUSE:
        return ServerError(f"port {port} on {host} is already in use; choose another with --http-port")
    if error.errno == errno.EADDRNOTAVAIL or (isinstance(error, OSError) and type(error).__name__ == "gaierror"):
        return ServerError(f"cannot listen on '{host}': it is not an address of this machine; see --http-host")
    return ServerError(f"cannot listen on {host}:{port}: {error.strerror or error}")
