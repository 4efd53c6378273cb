"""One HTTP request on its way through the gateway: what Envoy tells of it, and what it is answered."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dynamo.api.epp import messages
from dynamo.api.protobuf import Message
from dynamo.protocols.errors import DynamoException

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
_LB, _SUBSET_HINT = "envoy.lb", "envoy.lb.subset_hint"
REMOVED = (
    SUBSET,
    SERVED,
    "x-gateway-inference-fairness-id",
    "x-gateway-inference-objective",
    "x-gateway-model-name-rewrite",
    "x-worker-instance-id",
    "x-dp-rank",
    "x-data-parallel-rank",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-prefill-dp-rank",
)
"""What only the gateway may say; a client's are taken out."""
OWN = ("x-dynamo-worker-instance-id", "x-dynamo-dp-rank", "x-dynamo-routing-mode")
"""What the picker says; where it says nothing, a client's are taken out too."""
_REFUSED_MODES = {messages.STREAMED: "STREAMED", messages.GRPC: "GRPC"}
_FAILED = (500, 502, 503, 504)


class UnsupportedMode(Exception):
    """The gateway sends bodies in a way in which nothing can be chosen by them."""


class GatewayRequest(Struct, kw_only=True):
    """An HTTP request as far as it matters for the choice."""

    id: str
    method: str
    path: str
    body: bytes | bytearray | None
    """None: there is none, or it is too large to be looked at."""
    subset: frozenset[str] | None = None
    """The endpoints that the gateway allows; None: all."""


class Picked(Protocol):
    """Where a request goes. The holder says how it fares."""

    endpoint: str
    headers: dict[str, str]
    """For the server that gets it."""

    def first_output(self) -> None: ...

    def answered(self, failed: bool) -> None:
        """The server, or the gateway in its place, began an answer."""

    def release(self) -> None:
        """However the request ended. Further calls do nothing."""


class Picker(Protocol):
    async def pick(self, request: GatewayRequest) -> Picked:
        """Raises DynamoException where no endpoint can take it."""


class Phase(enum.Enum):
    READING = enum.auto()
    """The request arrives, and is held back."""
    PASSING = enum.auto()
    """An endpoint was chosen; what still comes of the body passes through."""
    REFUSED = enum.auto()


class Exchange:
    """`take` each message of the gateway; its answers go back in order. `close` it however it ends."""

    def __init__(self, picker: Picker, body_limit: int) -> None:
        """Requests with more than `body_limit` bytes go where the load is least."""
        self._picker = picker
        self._limit = body_limit
        self._phase = Phase.READING
        self._headers: dict[str, str] = {}
        self._subset: frozenset[str] | None = None
        self._body: bytearray = bytearray()
        self._whole = True
        self._buffered = False
        self._response_body = True
        self._picked: Picked | None = None
        self._began = False

    def close(self) -> None:
        if self._picked:
            self._picked.release()

    async def take(self, message: Message) -> Sequence[Message]:
        match message.WhichOneof("request"):
            case "response_body":
                return self._response_chunk(message.response_body)
            case "request_headers":
                return await self._request_headers(message)
            case "request_body":
                return await self._request_body(message.request_body)
            case "request_trailers":
                chosen = await self._choose(end=False) if self._phase is Phase.READING else ()
                return chosen if self._phase is Phase.REFUSED else (*chosen, messages.REQUEST_TRAILERS_GO_ON)
            case "response_headers":
                return self._response_headers(message.response_headers)
            case "response_trailers":
                return (messages.RESPONSE_TRAILERS_GO_ON,)
        return ()  # a kind of message that is newer than this

    async def _request_headers(self, message: Message) -> Sequence[Message]:
        mode = messages.FULL_DUPLEX_STREAMED
        if message.HasField("protocol_config"):
            mode = message.protocol_config.request_body_mode
            self._response_body = message.protocol_config.response_body_mode != messages.NONE
        for body_mode in (mode, message.protocol_config.response_body_mode):
            if name := _REFUSED_MODES.get(body_mode):
                wanted = "FULL_DUPLEX_STREAMED (or BUFFERED for requests, NONE for responses)"
                raise UnsupportedMode(f"the gateway sends bodies as {name}: set its body modes to {wanted}")
        self._headers = messages.header_values(message.request_headers)
        self._subset = _subset(message)
        if message.request_headers.end_of_stream or mode == messages.NONE:
            return await self._choose(end=True, body=False)
        self._buffered = mode in (messages.BUFFERED, messages.BUFFERED_PARTIAL)
        return (messages.REQUEST_GOES_ON,) if self._buffered else ()

    async def _request_body(self, part: Message) -> Sequence[Message]:
        if self._phase is Phase.PASSING:
            return messages.request_chunks(part.body, end=part.end_of_stream)
        self._body += part.body
        if len(self._body) > self._limit:
            self._whole = False
        if part.end_of_stream or self._buffered or not self._whole:
            return await self._choose(end=part.end_of_stream)
        return ()

    async def _choose(self, *, end: bool, body: bool = True) -> Sequence[Message]:
        """The gateway's orders for the request, and what of its body was held back."""
        request = GatewayRequest(
            id=self._headers.get("x-request-id", ""),
            method=self._headers.get(":method", ""),
            path=self._headers.get(":path", ""),
            body=self._body if body and self._whole else None,
            subset=self._subset,
        )
        try:
            picked = self._picked = await self._picker.pick(request)
        except DynamoException as error:
            self._phase = Phase.REFUSED
            return (_refusal(error),)
        self._phase = Phase.PASSING
        held, self._body = self._body, bytearray()
        silent = tuple(name for name in OWN if name not in picked.headers)
        common = messages.CommonResponse(
            header_mutation=messages.mutation({DESTINATION: picked.endpoint, **picked.headers}, (*REMOVED, *silent)),
            clear_route_cache=True,
        )
        if self._buffered:
            order = messages.ProcessingResponse(request_body=messages.BodyResponse(response=common))
        else:
            order = messages.ProcessingResponse(request_headers=messages.HeadersResponse(response=common))
        order.dynamic_metadata.update({_LB: {DESTINATION: picked.endpoint}})
        if self._buffered or not body:
            return (order,)
        return (order, *messages.request_chunks(held, end=end))

    def _response_headers(self, headers: Message) -> Sequence[Message]:
        if self._picked:
            status = messages.header_values(headers).get(":status", "")
            self._picked.answered(status.isdecimal() and int(status) in _FAILED)
            if not self._response_body or headers.end_of_stream:
                self._first_output()
        return (messages.HEADERS_GO_ON,)

    def _response_chunk(self, part: Message) -> Sequence[Message]:
        if not self._began and part.body:
            self._first_output()
        if part.end_of_stream and self._picked:
            self._picked.release()
        return messages.response_chunks(part.body, end=part.end_of_stream)

    def _first_output(self) -> None:
        self._began = True
        if self._picked:
            self._picked.first_output()


def _subset(message: Message) -> frozenset[str] | None:
    """The endpoints to choose from, as the gateway says; a client's header of that name says nothing."""
    hint = message.metadata_context.filter_metadata
    if _SUBSET_HINT not in hint or SUBSET not in hint[_SUBSET_HINT].fields:
        return None
    value = hint[_SUBSET_HINT].fields[SUBSET]
    given = [each.string_value for each in value.list_value.values] or [value.string_value]
    return frozenset(word.strip() for text in given for word in text.split(",") if word.strip())


def _refusal(error: DynamoException) -> Message:
    """In OpenAI's form, as clients of the servers expect it."""
    body = {"error": {"message": error.public_message, "type": "service_unavailable", "param": None, "code": None}}
    headers = {"content-type": "application/json"}
    if error.status == 503:
        headers["retry-after"] = "1"
    return messages.immediate(error.status, json.dumps(body).encode(), headers)
