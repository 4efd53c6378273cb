"""`/health`, `/live`, `/metrics` and the engine's controls of a worker."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
from typing import Any

import msgspec
from aiohttp import web

from dynamo.process.http_connection import HttpConnection, UnfinishedHeaders
from dynamo.process.open_files import FileReserve
from dynamo.process.threads import in_thread
from dynamo.protocols.errors import HttpError, StartError, from_exception
from dynamo.runtime.exposition import CONTENT_TYPE, exposition
from dynamo.runtime.inspection import Inspection
from dynamo.runtime.inspection.inspection import NDJSON, encoded
from dynamo.runtime.status.status import Status

log = logging.getLogger(__name__)

WORDS = {True: "ready", False: "notready"}


class StatusError(StartError):
    """The status server cannot listen; the message names the fix."""


class StatusServer:
    def __init__(self, status: Status, inspection: Inspection) -> None:
        self._status = status
        self._inspection = inspection
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        config = self._status.config
        app = web.Application()
        # One handler for both: liveness must also fail for a worker that hangs, so that it is restarted.
        app.router.add_get(config.health_path, self._health)
        if config.live_path != config.health_path:
            app.router.add_get(config.live_path, self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/inspect", self._inspect)
        app.router.add_post("/engine/control/{name}", self._control)
        app.router.add_get("/v1/loras", self._list_loras)
        app.router.add_post("/v1/loras", self._load_lora)
        app.router.add_delete("/v1/loras/{name:.+}", self._unload_lora)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._not_found)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        server, reserve, headers = self._runner.server, FileReserve(), UnfinishedHeaders()
        assert server
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: HttpConnection(server, reserve, headers, access_log=None), config.host, config.port
            )
        except OSError as error:
            await self.close()
            raise _cannot_listen(config.host, config.port, error) from error
        host, port = self._listener.sockets[0].getsockname()[:2]
        log.info("status at http://%s:%d%s", f"[{host}]" if ":" in host else host, port, config.health_path)

    async def close(self) -> None:
        if self._listener:
            self._listener.close()
            self._listener = None
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        status = self._status
        ready, uptime = status.ready, status.uptime
        body = {
            "status": WORDS[ready],
            "uptime": {"secs": int(uptime), "nanos": int(uptime % 1 * 1e9)},
            "endpoints": {name: WORDS[ready] for name, ready in sorted(status.endpoints().items())},
        }
        return web.Response(
            status=200 if ready else 503, body=msgspec.json.encode(body), content_type="application/json"
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        families = self._status.metrics()
        if self._status.has_registries:
            families += await asyncio.to_thread(self._status.collected)
        return web.Response(body=exposition(families), headers={"Content-Type": CONTENT_TYPE})

    async def _inspect(self, request: web.Request) -> web.Response:
        """In a thread: the answer includes what the event loop does."""
        try:
            self._check_caller(request)
        except HttpError as error:
            return _json(error.status, {"error": error.message})
        data = await request.read()
        body = await in_thread(lambda: b"".join(encoded(self._inspection, data)))
        return web.Response(body=body, content_type=NDJSON)

    async def _control(self, request: web.Request) -> web.Response:
        return await self._call(request.match_info["name"], request)

    async def _list_loras(self, request: web.Request) -> web.Response:
        return await self._call("list_loras", request)

    async def _load_lora(self, request: web.Request) -> web.Response:
        return await self._call("load_lora", request)

    async def _unload_lora(self, request: web.Request) -> web.Response:
        return await self._call("unload_lora", request, lora_name=request.match_info["name"])

    async def _call(self, name: str, request: web.Request, **more: Any) -> web.Response:
        try:
            self._check_caller(request)
            control = self._status.controls.get(name)
            if control is None:
                known = ", ".join(sorted(self._status.controls)) or "none"
                raise HttpError(404, f"this engine has no control '{name}'; it has {known}")
            answer = await control(_object(await request.read()) | more)
            return _json(200, {"status": "ok"} if answer is None else answer)
        except web.HTTPException:
            raise
        except Exception as error:
            found = from_exception(error)
            if found.status >= 500:
                log.error("control %s failed: %s", name, error, exc_info=error)
            return _json(found.status, {"error": found.message})

    def _check_caller(self, request: web.Request) -> None:
        """Controls change what the engine does: for this machine, and for others with the token."""
        if "Origin" in request.headers:
            raise HttpError(403, "controls are not for web pages")
        token = self._status.control_token
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and hmac.compare_digest(given.encode(), token.encode()):
            return
        if not ipaddress.ip_address(request.remote or "0.0.0.0").is_loopback:
            fix = "send it as Authorization: Bearer" if token else "set it on the worker"
            raise HttpError(403, f"controls from another machine need DYN_PLANE_TOKEN: {fix}")

    async def _not_found(self, request: web.Request) -> web.Response:
        return web.Response(status=404, text="Route not found")


def _object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise HttpError(400, f"the body must be a JSON object: {error}") from None


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _cannot_listen(host: str, port: int, error: OSError) -> StatusError:
    if error.errno == errno.EADDRINUSE:
        return StatusError(f"the status port {port} on {host} is already in use; choose another with DYN_SYSTEM_PORT")
    return StatusError(f"cannot serve the status on {host}:{port} ({error.strerror or error}); see DYN_SYSTEM_HOST")
