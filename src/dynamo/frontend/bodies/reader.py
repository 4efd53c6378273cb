"""Reading request bodies: JSON only, up to a size, within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Generic, TypeVar

from aiohttp import web

from dynamo.api.call import Body
from dynamo.frontend import headers
from dynamo.frontend.admission.keys import OWNER
from dynamo.frontend.bodies.arriving import ArrivingBodies
from dynamo.frontend.bodies.content_encoding import TooLong, unpack
from dynamo.frontend.config import FrontendConfig
from dynamo.model import CLIENT
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import SMALL, BodyLimits, TextSpan, check_shape
from dynamo.protocols.errors import HttpError
from dynamo.protocols.long_strings import ShortenedBody, decode_in_steps
from dynamo.serving.request_template import fill_body

BOM = b"\xef\xbb\xbf"
"""Some editors and clients begin UTF-8 with it; JSON does not allow it."""


T = TypeVar("T")


async def no_body(request: web.Request) -> tuple[None, bytes | bytearray]:
    """The reader of a route that takes no body: what a client sends all the same stays unread."""
    return None, b""


class BodyReader(Generic[Body]):
    """Reads the bodies of one route."""

    def __init__(
        self, kind: type[Body], config: FrontendConfig, arriving: ArrivingBodies, *, only_json: bool = True
    ) -> None:
        self._decoder = BodyDecoder(kind)
        self._config = config
        self._arriving = arriving
        self._limits = BodyLimits(config.body_items, config.body_fields)
        self._only_json = only_json

    async def read(self, request: web.Request) -> tuple[Body, bytes | bytearray]:
        """The decoded body and its JSON, both with the fields that the operator's template fills in."""
        kind = request.content_type
        is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
        if not is_json and self._only_json:
            raise HttpError(415, f"Content-Type must be application/json, not {kind}")
        config = self._config
        limit = config.body_limit_mb << 20
        if (request.content_length or 0) > limit:
            raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
        body = await request.read() if request.content.is_eof() else await self._rest(request, limit)
        if encoding := request.headers.get("Content-Encoding"):
            body = await self._unpacked(body, encoding, limit)
        if body.startswith(BOM):
            body = body[len(BOM) :]
        spans: list[TextSpan] = []
        if len(body) > SMALL:
            CLIENT.set((request.get(OWNER), request.remote))
            spans = await _in_turns(check_shape(body, self._limits))
        if config.request_template:
            shortened = ShortenedBody(body, spans).json if spans else None
            filled = fill_body(config.request_template, body, self._decoder.kind, shortened)
            spans = spans if filled is body else []
            body = filled
        ignored: list[str] | None = [] if config.ignores_unknown_fields else None
        if spans:
            decoded = await _in_turns(decode_in_steps(self._decoder, body, spans, ignored))
        else:
            decoded = self._decoder.decode(body, ignored)
        if ignored:
            request[headers.WARNINGS] = [headers.ignored("unknown fields", ignored)]
        return decoded, body

    async def _rest(self, request: web.Request, limit: int) -> bytes | bytearray:
        try:
            async with asyncio.timeout(self._config.body_timeout or None):
                return await self._arriving.read(request.content, limit)
        except TimeoutError:
            raise HttpError(408, f"The request's body did not come within {self._config.body_timeout:g} s") from None

    async def _unpacked(self, body: bytes | bytearray, encoding: str, limit: int) -> bytes | bytearray:
        if encoding.lower() == "identity":
            return body
        try:
            return await unpack(body, encoding, limit)
        except TooLong:
            raise web.HTTPRequestEntityTooLarge(limit) from None


async def _in_turns(steps: Generator[None, None, T]) -> T:
    """Other requests have their turn between the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
