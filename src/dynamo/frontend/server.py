"""The life of the HTTP server: listen, serve, drain, stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging

from aiohttp import web

from dynamo.frontend.app import Frontend
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.models import Models
from dynamo.model import HubConfig
from dynamo.protocols.errors import StartError
from dynamo.runtime import DistributedRuntime

log = logging.getLogger(__name__)


class ServerError(StartError):
    """The server cannot listen; the message names the fix."""


class Server:
    def __init__(self, runtime: DistributedRuntime, config: FrontendConfig, hub: HubConfig) -> None:
        self._runtime = runtime
        self._config = config
        self.models = Models(runtime, config.router, hub)
        self._frontend = Frontend(self.models, config)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen first, so that a taken port is told at once; then learn which models there are."""
        self._runner = web.AppRunner(
            self._frontend.application(), access_log=None, handler_cancellation=True, keepalive_timeout=75
        )
        await self._runner.setup()
        host, port = self._config.host, self._config.port
        site = web.TCPSite(self._runner, host, port, backlog=1024, shutdown_timeout=1.0)
        try:
            await site.start()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServerError(
                    f"port {port} on {host} is already in use; choose another with --http-port"
                ) from error
            raise ServerError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        await self.models.start()
        # What was made until now stays for good: later collections need not look at it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)

    async def serve(self) -> None:
        """Serve until the runtime shuts down, then take no new connection and let running requests finish."""
        await self._runtime.wait_for_shutdown()
        self._frontend.draining = True
        assert self._runner
        for site in tuple(self._runner.sites):
            await site.stop()
        await self._finished()

    async def stop(self) -> None:
        """End what still runs; safe in whatever state the server is."""
        if self._runner:
            await self._runner.cleanup()
        await self.models.close()

    async def _finished(self) -> None:
        try:
            async with asyncio.timeout(self._config.graceful_shutdown_timeout):
                await self._frontend.idle()
        except TimeoutError:
            log.warning("%d requests did not finish in time and are ended now", self._frontend.running)
