"""The gRPC server: listens, admits calls, and turns errors into the protocol's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from msgspec import Struct

from dynamo.api.kserve import messages
from dynamo.api.kserve.messages import SERVICE, Message
from dynamo.api.kserve.service import DESCRIPTIONS, INFER, STREAM_INFER, GrpcCall, RpcRoute, Service, error_response
from dynamo.protocols.errors import DynamoException, StartError, from_exception
from dynamo.runtime import Context
from dynamo.serving.models import Models
from dynamo.serving.observer import RequestObserver

log = logging.getLogger(__name__)

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

_LONGEST_MESSAGE = 500
HANDSHAKE_TIMEOUT = 10.0
"""Seconds until a connection must speak HTTP/2."""


class Inference(Struct, frozen=True):
    """A request that runs a model, as an admission sees it."""

    id: str
    context: Context
    size: int
    """Bytes of its message."""
    max_tokens: int
    """The longest answer that it asks for; 1 if it does not say."""


class Admission(Protocol):
    """Decides which calls are served, and measures them."""

    def begin(
        self, route: RpcRoute, metadata: Mapping[str, str], inference: Inference | None
    ) -> RequestObserver | None:
        """Raises DynamoException for a call that is refused. `inference` is None for calls that run no model."""

    def end(self, observer: RequestObserver | None, error: DynamoException | None) -> None:
        """Called once for each inference that began. A client that left is a `Cancelled` error."""


class Open:
    """Admits all calls and measures none."""

    def begin(self, route: RpcRoute, metadata: Mapping[str, str], inference: Inference | None) -> None:
        return None

    def end(self, observer: RequestObserver | None, error: DynamoException | None) -> None:
        return None


class KserveServer:
    def __init__(
        self,
        models: Models,
        host: str,
        port: int,
        *,
        admission: Admission | None = None,
        certificate: tuple[Path, Path] | None = None,
        message_limit_mb: int = 45,
        connections: int = 0,
        idle_timeout: float = 0.0,
    ) -> None:
        """`certificate` is the paths of the certificate and of its key, both PEM. 0 is no limit.

        Beyond `connections` a new one is closed at once; one without a call for `idle_timeout` seconds is closed too.
        """
        self._service = Service(models)
        self._admission = admission or Open()
        self._host, self._port = host, port
        self._certificate = certificate
        self._options = [
            ("grpc.max_receive_message_length", message_limit_mb << 20),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", int(1e3 * HANDSHAKE_TIMEOUT)),
        ]
        if connections:
            self._options.append(("grpc.max_allowed_incoming_connections", connections))
        if idle_timeout:
            self._options.append(("grpc.max_connection_idle_ms", int(1e3 * idle_timeout)))
        self._server: Any = None
        self.address = ""

    async def start(self) -> None:
        self._server = grpc.aio.server(options=self._options)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        where = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        try:
            if self._certificate is None:
                port = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, self._credentials(*self._certificate))
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {where} for gRPC: it is in use or not an address of this machine; "
                "choose another with --http-port and --http-host"
            ) from error
        await self._server.start()
        self.address = where.rpartition(":")[0] + f":{port}"

    async def stop(self, grace: float = 0.0) -> None:
        """Refuse new calls; running ones have `grace` seconds to finish."""
        if self._server:
            await self._server.stop(grace)

    def _credentials(self, certificate: Path, key: Path) -> Any:
        try:
            return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
        except OSError as error:
            raise StartError(f"cannot read the certificate: {error}") from error

    def _handlers(self) -> dict[str, Any]:
        handlers = {
            route.method: _unary(route, self._describing(route, answer)) for route, answer in DESCRIPTIONS.items()
        }
        handlers[INFER.method] = _unary(INFER, self._infer)
        handlers[STREAM_INFER.method] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=messages.ModelInferRequest.FromString,
            response_serializer=messages.ModelStreamInferResponse.SerializeToString,
        )
        return handlers

    def _describing(
        self, route: RpcRoute, answer: Callable[[Service, Message], Message]
    ) -> Callable[[Message, Any], Awaitable[Message]]:
        async def describe(request: Message, context: Any) -> Message:
            try:
                self._admission.begin(route, _metadata(context), None)
                return answer(self._service, request)
            except Exception as failure:
                await _abort(context, _known(failure, route))

        return describe

    async def _infer(self, request: Message, context: Any) -> Message:
        call: GrpcCall | None = None
        error: DynamoException | None = None
        try:
            call = self._admitted(INFER, request, context)
            response = await self._service.infer(request, call)
            _warn(context, call.ignored)
            return response
        except asyncio.CancelledError as left:
            error = from_exception(left)
            raise
        except Exception as failure:
            error = _known(failure, INFER)
            await _abort(context, error)
        finally:
            if call:
                self._admission.end(call.observer, error)

    async def _stream(self, requests: AsyncIterator[Message], context: Any) -> AsyncIterator[Message]:
        """Requests are answered one after the other; one that fails is answered with its error."""
        async for request in requests:
            call: GrpcCall | None = None
            error: DynamoException | None = None
            try:
                call = self._admitted(STREAM_INFER, request, context)
                async for response in self._service.stream(request, call):
                    yield messages.ModelStreamInferResponse(infer_response=response)
                _warn(context, call.ignored)
            except (asyncio.CancelledError, GeneratorExit):
                error = from_exception(asyncio.CancelledError("the client left"))
                raise
            except Exception as failure:
                error = _known(failure, STREAM_INFER)
                yield error_response(error)
            finally:
                if call:
                    self._admission.end(call.observer, error)

    def _admitted(self, route: RpcRoute, request: Message, context: Any) -> GrpcCall:
        # A client's id need not be unique, as that by which workers know a request must be.
        inner = Context()
        longest = request.parameters["max_tokens"].int64_param if "max_tokens" in request.parameters else 1
        inference = Inference(request.id or inner.id(), inner, request.ByteSize(), max(1, longest))
        return GrpcCall(inner, self._admission.begin(route, _metadata(context), inference), [])


def _unary(route: RpcRoute, handler: Callable[[Message, Any], Awaitable[Message]]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        handler,
        request_deserializer=getattr(messages, f"{route.method}Request").FromString,
        response_serializer=getattr(messages, f"{route.method}Response").SerializeToString,
    )


def _metadata(context: Any) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _known(failure: Exception, route: RpcRoute) -> DynamoException:
    if not isinstance(failure, DynamoException):
        log.error("%s failed", route.method, exc_info=failure)
    return from_exception(failure)


async def _abort(context: Any, error: DynamoException) -> Any:
    # It travels as metadata, which clients refuse above 8 kB; names in it are the client's own.
    message = error.public_message[:_LONGEST_MESSAGE]
    await context.abort(_STATUS.get(error.status, grpc.StatusCode.INTERNAL), message)
    raise AssertionError("abort raises")


def _warn(context: Any, ignored: list[str]) -> None:
    if ignored:
        names = ", ".join(ascii(name[:64])[1:-1] for name in ignored[:20])
        context.set_trailing_metadata((("x-dynamo-warning", f"ignored unknown parameters: {names}"),))
