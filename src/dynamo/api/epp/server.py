"""The gRPC server: Envoy's external processing, and health checks, on one port; health alone on another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dynamo.api.epp import messages
from dynamo.api.epp.exchange import Exchange, Picker, UnsupportedMode
from dynamo.process.files import Stamp, file_stamp
from dynamo.protocols.errors import StartError

log = logging.getLogger(__name__)

SERVICES = ("", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
"""The names by which probes and gateways ask for our health."""


class PickerServer:
    def __init__(
        self,
        picker: Picker,
        host: str,
        port: int,
        health_port: int,
        *,
        certificate: tuple[Path, Path] | None = None,
        body_limit: int = 8 << 20,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`certificate` is the paths of the certificate and of its key, both PEM; they are read again when they change.

        Requests with more than `body_limit` bytes go where the load is least.
        """
        self._picker = picker
        self._host = host
        self._ports = (port, health_port)
        self._certificate = certificate
        self._body_limit = body_limit
        self._ready = ready
        self._leaving = False
        self._servers: list[Any] = []
        self.address = self.health_address = ""

    async def start(self) -> None:
        handlers = {
            messages.PROCESS: grpc.stream_stream_rpc_method_handler(
                self._process,
                request_deserializer=messages.ProcessingRequest.FromString,
                response_serializer=messages.ProcessingResponse.SerializeToString,
            ),
            **self._health_handlers(),
        }
        credentials = _credentials(*self._certificate) if self._certificate else None
        self.address = await self._listen(handlers, self._ports[0], credentials, "--epp-port")
        if self._ports[1] >= 0:
            self.health_address = await self._listen(self._health_handlers(), self._ports[1], None, "--epp-health-port")

    async def stop(self, grace: float = 0.0) -> None:
        """Not healthy from now on; exchanges under way have `grace` seconds."""
        self._leaving = True
        for server in self._servers:
            await server.stop(grace)

    async def _listen(self, handlers: dict[str, Any], port: int, credentials: Any, flag: str) -> str:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)])
        server.add_generic_rpc_handlers((_Handlers(handlers),))
        where = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        try:
            bound = server.add_secure_port(where, credentials) if credentials else server.add_insecure_port(where)
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {where}: it is in use or not an address of this machine; choose another with {flag} "
                "and --epp-host"
            ) from error
        await server.start()
        self._servers.append(server)
        return f"{where.rpartition(':')[0]}:{bound}"

    async def _process(self, requests: Any, context: Any) -> None:
        del requests  # `context.read` takes them without a generator between
        exchange = Exchange(self._picker, self._body_limit)
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                for response in await exchange.take(message):
                    await context.write(response)
        except UnsupportedMode as error:
            log.error("%s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except asyncio.CancelledError:
            raise  # the gateway has ended it, as it does when a client leaves
        except Exception:
            log.exception("a request was not examined; what becomes of it is the gateway's failure mode")
            await context.abort(grpc.StatusCode.INTERNAL, "the picker failed; its log says why")
        finally:
            exchange.close()

    def _health_handlers(self) -> dict[str, Any]:
        def handler(kind: Any, answer: Any) -> Any:
            return kind(
                answer,
                request_deserializer=messages.HealthCheckRequest.FromString,
                response_serializer=messages.HealthCheckResponse.SerializeToString,
            )

        return {
            messages.HEALTH_CHECK: handler(grpc.unary_unary_rpc_method_handler, self._check),
            messages.HEALTH_WATCH: handler(grpc.unary_stream_rpc_method_handler, self._watch),
        }

    async def _check(self, request: Any, context: Any) -> Any:
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service '{request.service[:100]}' here")
        return self._health()

    async def _watch(self, request: Any, context: Any) -> None:
        last = None
        while True:
            now = self._health() if request.service in SERVICES else _UNKNOWN
            if now != last:
                last = now
                await context.write(now)
            await asyncio.sleep(WATCH_SECONDS)

    def _health(self) -> Any:
        serving = self._ready() and not self._leaving
        return messages.HealthCheckResponse(status=messages.SERVING if serving else messages.NOT_SERVING)


WATCH_SECONDS = 1.0
_UNKNOWN = messages.HealthCheckResponse(status=messages.SERVICE_UNKNOWN)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _credentials(certificate: Path, key: Path) -> Any:
    """New connections get the newest readable certificate."""
    seen: list[Stamp | None] = []
    loop = asyncio.get_running_loop()

    def read() -> Any:
        pair = (key.read_bytes(), certificate.read_bytes())
        if b"PRIVATE KEY" not in pair[0] or b"CERTIFICATE" not in pair[1]:
            raise OSError(f"{certificate} and {key} are not a certificate and its key in PEM")
        return grpc.ssl_server_certificate_configuration([pair])

    def newest() -> Any:
        """None: what is used already."""
        stamps = [file_stamp(each) for each in (certificate, key)]
        if stamps == seen:
            return None
        seen[:] = stamps
        try:
            return read()
        except OSError as error:
            # gRPC asks in a thread of its own.
            loop.call_soon_threadsafe(log.error, "keeping the TLS certificate in use: %s", error)
            return None

    try:
        first = read()
    except OSError as error:
        raise StartError(f"cannot read the certificate (--tls-cert-path, --tls-key-path): {error}") from error
    seen[:] = [file_stamp(each) for each in (certificate, key)]
    return grpc.dynamic_ssl_server_credentials(first, newest)
