"""The wire format of the request plane: u32 length, u8 kind, msgpack body. No I/O here.

TCP carries a sequence of frames as they are; NATS carries the same bytes, cut into numbered messages.
"""

from __future__ import annotations

import enum
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument, ProtocolError
from dynamo.protocols.streams import StreamClaim

MAGIC = "dynamo"
VERSION = 2
MAX_FRAME = 64 * 1024 * 1024
MAX_GREETING = 1024
"""Bytes of a frame from a peer that has not introduced itself."""
HEADER = struct.Struct(">IB")


class Kind(enum.IntEnum):
    HELLO = 1
    REQUEST = 2
    CANCEL = 3
    DELTAS = 4
    ITEM = 5
    END = 6
    ERROR = 7
    PING = 8
    PONG = 9
    DRAINING = 10
    PROOF = 11


class Hello(Struct, array_like=True):
    magic: str = MAGIC
    version: int = VERSION
    retired: str | None = None
    """Where older clients send a token; never read."""
    nonce: bytes = b""
    """Sent by a side that has a token; see `handshake`."""


class Request(Struct, array_like=True):
    stream: int
    endpoint: str
    id: str
    payload: Raw
    columnar: bool = False
    """The client takes bare token deltas, merged per step, in DELTAS frames."""
    metadata: dict[str, str] = {}
    traceparent: str | None = None
    tokens: bytes = b""
    """The payload's `token_ids`, left out there: u32 little-endian, so that no number becomes an object."""
    claim: StreamClaim | None = None
    """The stream is to outlive this connection, or is one that does. Older workers do not read it."""


class Cancel(Struct, array_like=True):
    stream: int
    kill: bool = True


class Item(Struct, array_like=True):
    stream: int
    payload: Raw


class End(Struct, array_like=True):
    stream: int


class Error(Struct, array_like=True):
    stream: int
    kind: str
    message: str
    status: int = 500


Deltas = dict[int, list[int]]
"""All new tokens of one engine step: stream id to token ids."""

_encoder = msgspec.msgpack.Encoder()


def as_builtin(value: Any) -> Any:
    """Convert values that msgpack cannot encode: arrays, pydantic models, other objects with a dump method."""
    if isinstance(value, array):
        return value.tolist()
    dump = getattr(value, "model_dump", None) or getattr(value, "to_dict", None)
    if callable(dump):
        return dump()
    raise TypeError(f"a value of type {type(value).__name__} cannot travel over the request plane")


class Unencodable(InvalidArgument):
    """A value that the request plane cannot carry."""


_payload_encoder = msgspec.msgpack.Encoder(enc_hook=as_builtin)


def encode_payload(value: Any) -> Raw:
    """Encode any JSON-like value or bytes for use inside a frame."""
    try:
        return Raw(_payload_encoder.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unencodable(f"value cannot travel over the request plane: {error}") from error


def encode_request(request: Any) -> tuple[Raw, bytes]:
    """The payload of a request and its packed prompt. A prompt that cannot be packed stays in the payload."""
    if isinstance(request, PreprocessedRequest):
        try:
            tokens = pack(request.token_ids)
        except (TypeError, OverflowError):
            return encode_payload(request), b""
        return encode_payload(structs.replace(request, token_ids=[])), tokens
    return encode_payload(request), b""


def pack(token_ids: Sequence[int]) -> bytes:
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(tokens: bytes) -> array[int]:
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed


def frame(kind: Kind, body: Any = None) -> bytes:
    encoded = _encoder.encode(body)
    if len(encoded) > MAX_FRAME:
        raise InvalidArgument(f"message of {len(encoded)} bytes is over the limit of {MAX_FRAME}")
    return HEADER.pack(len(encoded), kind) + encoded


_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    Kind.HELLO: msgspec.msgpack.Decoder(Hello),
    Kind.REQUEST: msgspec.msgpack.Decoder(Request),
    Kind.CANCEL: msgspec.msgpack.Decoder(Cancel),
    Kind.DELTAS: msgspec.msgpack.Decoder(Deltas),
    Kind.ITEM: msgspec.msgpack.Decoder(Item),
    Kind.END: msgspec.msgpack.Decoder(End),
    Kind.ERROR: msgspec.msgpack.Decoder(Error),
    Kind.PING: msgspec.msgpack.Decoder(None),
    Kind.PONG: msgspec.msgpack.Decoder(None),
    Kind.DRAINING: msgspec.msgpack.Decoder(str),
    Kind.PROOF: msgspec.msgpack.Decoder(bytes),
}


class FrameDecoder:
    """Bytes in, whole messages out. After a ProtocolError the connection must be closed."""

    __slots__ = ("_chunks", "_have", "_need", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = HEADER.size

    def feed(self, data: bytes) -> list[tuple[int, Any]]:
        """The messages that `data` completes, as (kind, body)."""
        if self._have + len(data) < self._need:
            self._chunks.append(data)
            self._have += len(data)
            return []
        if self._have:
            self._chunks.append(data)
            data = b"".join(self._chunks)
        messages: list[tuple[int, Any]] = []
        start, size = 0, len(data)
        need = HEADER.size
        while size - start >= HEADER.size:
            length, kind = HEADER.unpack_from(data, start)
            if length > self.limit:
                raise ProtocolError(f"frame of {length} bytes is over the limit of {self.limit}")
            decoder = _DECODERS.get(kind)
            if decoder is None:
                raise ProtocolError(f"unknown frame kind {kind}")
            body = start + HEADER.size
            need = HEADER.size + length
            if size - start < need:
                break
            try:
                messages.append((kind, decoder.decode(data[body : body + length])))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"undecodable {Kind(kind).name} frame: {error}") from error
            start = body + length
            need = HEADER.size
        rest = data[start:]
        self._chunks = [rest] if rest else []
        self._have = len(rest)
        self._need = need
        return messages
