"""Every parser that reads bytes from outside: each input is either read, or refused by an error that the parser names.

`kept/NAME/` has inputs for the parser NAME: valid ones to mutate, and those that once broke it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp import MultipartReader, StreamReader
from aiohttp.base_protocol import BaseProtocol
from google.protobuf.message import DecodeError
from multidict import CIMultiDict, CIMultiDictProxy

from dynamo.api.anthropic.request import MessagesRequest
from dynamo.api.anthropic.to_chat import anthropic_to_chat
from dynamo.api.kserve import messages
from dynamo.api.openai.files import FormStream
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.to_chat import responses_to_chat
from dynamo.frontend.admission.keys import read_keys
from dynamo.kubernetes.kubeconfig import parse_kubeconfig
from dynamo.kv.messages import KvSnapshot, ReservationBatch, RouterEventBatch
from dynamo.lab.simulate.traces import format_of, read_azure, read_mooncake, read_request_trace
from dynamo.model.gguf import is_quantised, read_gguf
from dynamo.model.template import load_template
from dynamo.pipeline.constraint_limits import check_schema_limits
from dynamo.pipeline.schema import check_schema
from dynamo.pipeline.validate import validate_chat, validate_completion
from dynamo.process.supervisor.deployment import parse_deployment
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import BodyLimits, check_shape
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.errors import DynamoException, ProtocolError, StartError
from dynamo.protocols.long_strings import decode_in_steps
from dynamo.protocols.planner import PlannerReport
from dynamo.runtime import records
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.frames import FrameDecoder
from dynamo.serving.exchange import FrontendReport

KEPT = Path(__file__).with_name("kept")
REFUSED = (DynamoException, StartError)
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What those who receive messages of other processes catch."""


class Parser(msgspec.Struct, frozen=True):
    read: Callable[[bytes, Path], object]
    """May use the folder."""
    refuses: tuple[type[Exception], ...] = REFUSED


def body(kind: Any, check: Callable[[Any], object]) -> Parser:
    decoder: BodyDecoder[Any] = BodyDecoder(kind)

    def read(data: bytes, folder: Path) -> object:
        def steps() -> Generator[None, None, Any]:
            spans = yield from check_shape(data, BodyLimits())
            return (yield from decode_in_steps(decoder, data, spans, []))

        return check(_result(steps()))

    return Parser(read)


def _result(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def message(kind: Any) -> Parser:
    decoder = msgspec.msgpack.Decoder(kind)
    return Parser(lambda data, folder: decoder.decode(data), MALFORMED)


def file(read: Callable[[Path], object], name: str = "input", *more: type[Exception]) -> Parser:
    def parse(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return Parser(parse, (*REFUSED, *more))


def _schema(data: bytes, folder: Path) -> None:
    try:
        schema = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    check_schema(schema, "schema")
    check_schema_limits(schema, "schema")


def _form(data: bytes, folder: Path) -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        stream = StreamReader(BaseProtocol(loop), 2**16, loop=loop)
        stream.feed_data(data)
        stream.feed_eof()
        headers = CIMultiDictProxy(CIMultiDict({"Content-Type": "multipart/form-data; boundary=x"}))
        form = MultipartReader(headers, cast(StreamReader, FormStream(stream, 1 << 20)))
        async for part in form:
            if isinstance(part, aiohttp.BodyPartReader):
                while await part.read_chunk():
                    pass

    asyncio.run(read())


def _trace(path: Path) -> None:
    for read in (read_mooncake, read_request_trace, read_azure):
        try:
            list(read(path))
        except REFUSED:
            pass
    format_of(path)


def _template(path: Path) -> None:
    template = load_template({"chat_template": path}, {})
    if template:
        template.render([{"role": "user", "content": "hello"}])


def _record(data: bytes, folder: Path) -> None:
    try:
        records.decode_card(data)
    except ValueError:
        records.decode_instance(EndpointId("a", "b", "c"), 1, data)


def _gguf(path: Path) -> None:
    read_gguf(path)
    is_quantised(path)


PARSERS: dict[str, Parser] = {
    "chat": body(ChatRequest, validate_chat),
    "completion": body(CompletionRequest, validate_completion),
    "responses": body(ResponsesRequest, responses_to_chat),
    "messages": body(MessagesRequest, anthropic_to_chat),
    "schema": Parser(_schema),
    "form": Parser(_form, (*REFUSED, ValueError, aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError)),
    "kserve": Parser(lambda data, folder: messages.ModelInferRequest.FromString(data), (DecodeError,)),
    "frames": Parser(lambda data, folder: FrameDecoder().feed(data), (ProtocolError,)),
    "kv-events": message(RouterEventBatch),
    "kv-snapshot": message(KvSnapshot),
    "reservations": message(ReservationBatch),
    "frontends": message(FrontendReport),
    "planner": message(PlannerReport),
    "records": Parser(_record, (ValueError,)),
    "gguf": file(_gguf),
    "template": file(_template, "chat_template.jinja"),
    "trace": file(_trace),
    "keys": file(lambda path: read_keys(str(path)), "keys.toml", ValueError),
    "kubeconfig": Parser(lambda data, folder: parse_kubeconfig(data, "config")),
    "deployment": Parser(lambda data, folder: parse_deployment(data)),
}


def kept(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((KEPT / name).iterdir())]


def mutated(rng: random.Random, inputs: list[bytes]) -> bytes:
    """One of the inputs with some bytes changed, cut, repeated, or put in from another one."""
    data = bytearray(rng.choice(inputs))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        size = min(int(rng.expovariate(0.1)) + 1, len(data) - at)
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
            case 4:
                other = rng.choice(inputs)
                start = rng.randrange(len(other) + 1)
                data[at : at + size] = other[start : start + size]
            case 5:
                data[at:at] = rng.choice(ODD)
            case _:
                del data[at:]
    return bytes(data)


ODD = (
    b"null", b"-1", b"1e999", b"NaN", b"9" * 25, b"18446744073709551616", b'"\\ud800"', b"\xff\xfe", b"\0", b"{}",
    b"[]", b"[" * 600, b'{"a":' * 600, b"\xff" * 8, b"\x7f\xff\xff\xff", b"{{", b"{%", b"\r\n\r\n", b"--x--",
    b"&a [*a]", b": ", b"!!python/object:os.system", b"%s%n", b"../../etc/passwd", b"\xc1", b"\xdf\xff\xff\xff\xff",
)  # fmt: skip
