"""The gRPC server: listens, admits calls, and turns errors into the protocol's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from msgspec import Struct

from dynamo.api.kserve import messages
from dynamo.api.kserve.messages import SERVICE
from dynamo.api.kserve.service import DESCRIPTIONS, INFER, STREAM_INFER, GrpcCall, RpcRoute, Service, error_response
from dynamo.api.protobuf import Message
from dynamo.api.route import Access
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

Handler = Callable[[str], Any]
"""Makes gRPC's handler for a call, given the call's owner."""
_LONGEST_MESSAGE = 500
METADATA = 16 << 10
LOOKAHEAD = 64 << 10
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

    def check(self, route: RpcRoute, metadata: Mapping[str, str]) -> str:
        """The owner of a call of which only the metadata was read; raises DynamoException for one that is refused."""

    def begin(self, route: RpcRoute, owner: str, inference: Inference) -> RequestObserver | None:
        """Raises DynamoException for an inference that is refused."""

    def end(self, observer: RequestObserver | None, error: DynamoException | None) -> None:
        """Called once for each inference that began. A client that left is a `Cancelled` error."""


class Open:
    """Admits all calls and measures none."""

    def check(self, route: RpcRoute, metadata: Mapping[str, str]) -> str:
        return ""

    def begin(self, route: RpcRoute, owner: str, inference: Inference) -> None:
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
            # Headers of a call, and bytes of a message that nobody has asked for yet: by default it grows to megabytes.
            ("grpc.max_metadata_size", METADATA),
            ("grpc.absolute_max_metadata_size", METADATA),
            ("grpc.http2.lookahead_bytes", LOOKAHEAD),
            ("grpc.http2.bdp_probe", 0),
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
        self._server.add_generic_rpc_handlers((CheckedCalls(self._admission, self._handlers()),))
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

    def _handlers(self) -> dict[RpcRoute, Handler]:
        """Each is made for the owner of one call, before the call's message is read."""
        handlers: dict[RpcRoute, Handler] = {
            route: partial(self._describing, route, answer) for route, answer in DESCRIPTIONS.items()
        }
        handlers[INFER] = lambda owner: _unary(INFER, partial(self._infer, owner))
        handlers[STREAM_INFER] = lambda owner: grpc.stream_stream_rpc_method_handler(
            partial(self._stream, owner),
            request_deserializer=messages.ModelInferRequest.FromString,
            response_serializer=messages.ModelStreamInferResponse.SerializeToString,
        )
        return handlers

    def _describing(self, route: RpcRoute, answer: Callable[[Service, Message], Message], owner: str) -> Any:
        async def describe(request: Any, context: Any) -> Message:
            try:
                return answer(self._service, request)
            except Exception as failure:
                await _abort(context, _known(failure, route))
            raise AssertionError("abort raises")

        if route.access is Access.PROBE:
            # Anyone may ask, and the message says nothing: it is not read.
            response = getattr(messages, f"{route.method}Response").SerializeToString
            return grpc.stream_unary_rpc_method_handler(describe, response_serializer=response)
        return _unary(route, describe)

    async def _infer(self, owner: str, request: Message, context: Any) -> Message:
        call: GrpcCall | None = None
        error: DynamoException | None = None
        try:
            call = self._admitted(INFER, owner, request)
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

    async def _stream(self, owner: str, requests: AsyncIterator[Message], context: Any) -> AsyncIterator[Message]:
        """Requests are answered one after the other; one that fails is answered with its error."""
        async for request in requests:
            call: GrpcCall | None = None
            error: DynamoException | None = None
            try:
                call = self._admitted(STREAM_INFER, owner, request)
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

    def _admitted(self, route: RpcRoute, owner: str, request: Message) -> GrpcCall:
        # A client's id need not be unique, as that by which workers know a request must be.
        inner = Context()
        longest = request.parameters["max_tokens"].int64_param if "max_tokens" in request.parameters else 1
        inference = Inference(request.id or inner.id(), inner, request.ByteSize(), max(1, longest))
        return GrpcCall(inner, self._admission.begin(route, owner, inference), [])


class CheckedCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a call when only its metadata has come: of a call that is refused, no message is read."""

    def __init__(self, admission: Admission, handlers: Mapping[RpcRoute, Handler]) -> None:
        self._admission = admission
        self._handlers = {f"/{SERVICE}/{route.method}": (route, handler) for route, handler in handlers.items()}

    def service(self, handler_call_details: Any) -> Any:
        found = self._handlers.get(handler_call_details.method)
        if found is None:
            return None
        route, handler = found
        try:
            owner = self._admission.check(route, _metadata(handler_call_details))
        except Exception as failure:
            return _refusing(_known(failure, route))
        return handler(owner)


def _refusing(error: DynamoException) -> Any:
    """A handler of any kind of call: one that takes a stream reads a message only when it is asked to."""

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await _abort(context, error)
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)


def _unary(route: RpcRoute, handler: Callable[[Message, Any], Awaitable[Message]]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        handler,
        request_deserializer=getattr(messages, f"{route.method}Request").FromString,
        response_serializer=getattr(messages, f"{route.method}Response").SerializeToString,
    )


def _metadata(details: Any) -> dict[str, str]:
    return {key: value for key, value in details.invocation_metadata or () if isinstance(value, str)}


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
