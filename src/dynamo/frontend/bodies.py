"""Reading request bodies: JSON only, unpacked, up to a size, within a time, and in bounded memory all together."""

from __future__ import annotations

import asyncio
import logging
import zlib
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Generic

from aiohttp import StreamReader, web

from dynamo.api import headers
from dynamo.api.route import OWNER, Body, HttpRoute
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.measure.request_record import RECORD
from dynamo.model import CLIENT
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import SMALL, BodyLimits, TextSpan, check_shape, in_turns
from dynamo.protocols.errors import HttpError, ResourceExhausted
from dynamo.protocols.long_strings import ShortenedBody, decode_in_steps
from dynamo.serving.request_template import fill_body

log = logging.getLogger(__name__)

BOM = b"\xef\xbb\xbf"
"""Some editors and clients begin UTF-8 with it; JSON does not allow it."""
STEP = 1 << 18
"""Bytes read or unpacked before other requests have their turn: a millisecond."""
GZIP = 16 + zlib.MAX_WBITS


class ArrivingBodies:
    """Reads bodies. Where they exceed `budget` bytes together, the largest is refused: 0 is no limit."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._sizes: dict[StreamReader, int] = {}
        self._total = 0

    async def read(self, content: StreamReader, limit: int) -> bytearray:
        """The whole body, of at most `limit` bytes."""
        body = bytearray()
        try:
            while chunk := await content.readany():
                body += chunk
                if len(body) > limit:
                    raise web.HTTPRequestEntityTooLarge(limit, len(body))
                self._count(content, len(chunk))
        except BaseException:
            # The error keeps this frame alive for as long as the connection has it.
            body.clear()
            raise
        finally:
            self._forget(content)
        return body

    def _count(self, content: StreamReader, more: int) -> None:
        self._sizes[content] = self._sizes.get(content, 0) + more
        self._total += more
        if not self._budget or self._total <= self._budget:
            return
        largest = max(self._sizes, key=self._sizes.__getitem__)
        self._forget(largest)
        error = ResourceExhausted(
            f"Request bodies of {self._budget >> 20} MB are arriving, which is the limit. Please retry shortly."
        )
        if largest is content:
            raise error
        largest.set_exception(error)

    def _forget(self, content: StreamReader) -> None:
        self._total -= self._sizes.pop(content, 0)


async def no_body(request: web.Request) -> tuple[None, bytes | bytearray]:
    """The reader of a route that takes no body: what a client sends all the same stays unread."""
    return None, b""


class BodyReader(Generic[Body]):
    """Reads the bodies of one route."""

    def __init__(self, route: HttpRoute[Any, Body], config: FrontendConfig, arriving: ArrivingBodies) -> None:
        assert route.body
        self._decoder = BodyDecoder(route.body)
        self._fields: tuple[str, ...] = getattr(route.body, "__struct_fields__", ())
        self._config = config
        self._arriving = arriving
        self._limits = BodyLimits(config.body_items, config.body_fields)
        self._only_json = not route.any_content_type
        self._answer_limits = route.limits

    async def read(self, request: web.Request) -> tuple[Body, bytes | bytearray]:
        """The decoded body and its JSON, both with the fields that the operator's template fills in."""
        kind = request.content_type
        if self._only_json and not headers.is_json(kind):
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
            spans = await in_turns(check_shape(body, self._limits))
        if config.request_template:
            shortened = ShortenedBody(body, spans).json if spans else None
            filled = fill_body(config.request_template, body, self._answer_limits, shortened)
            spans = spans if filled is body else []
            body = filled
        ignored: list[str] | None = [] if config.ignores_unknown_fields else None
        if spans:
            decoded = await in_turns(decode_in_steps(self._decoder, body, spans, ignored))
        else:
            decoded = self._decoder.decode(body, ignored)
        if ignored:
            hinted = [_hinted(name, self._fields) for name in ignored[: headers.MOST_NAMED]]
            warning = headers.ignored("unknown fields", [*hinted, *ignored[headers.MOST_NAMED :]])
            request[RECORD].warnings.append(warning)
            _log_once(request.path, warning)
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


@lru_cache(maxsize=1024)
def _hinted(name: str, fields: tuple[str, ...]) -> str:
    """The name of an unknown field, and which known one it may be meant for."""
    near = get_close_matches(name[:64], fields, n=1, cutoff=0.75)
    return f"{name[:64]} (did you mean {near[0]}?)" if near else name[:64]


@lru_cache(maxsize=1024)
def _log_once(path: str, warning: str) -> None:
    """A client that always sends the same would fill the log."""
    log.info("%s: %s", path, warning)


class TooLong(Exception):
    """The unpacked body exceeds the limit."""


async def unpack(body: bytes | bytearray, encoding: str, limit: int) -> bytearray:
    """Undo the `Content-Encoding`. At most one byte more than `limit` is ever unpacked."""
    unpacker = zlib.decompressobj(_window(body, encoding.strip().lower()))
    unpacked, rest, read = bytearray(), b"", 0
    try:
        while not unpacker.eof:
            if not rest:
                # Not the whole body at once: each call copies what it leaves.
                rest, read = bytes(body[read : read + STEP]), read + STEP
            step = unpacker.decompress(rest, min(STEP, limit + 1 - len(unpacked)))
            rest = unpacker.unconsumed_tail
            if not step and not rest and read >= len(body):
                break
            unpacked += step
            if len(unpacked) > limit:
                raise TooLong
            await asyncio.sleep(0)
    except zlib.error:
        raise HttpError(400, f"the request's body is not valid {encoding}") from None
    if unpacker.unused_data or (unpacker.eof and read < len(body)):
        # Each further member copies what follows it: many small ones would take quadratic time.
        raise HttpError(400, f"the request's body goes on after the end of its {encoding} data")
    if not unpacker.eof:
        raise HttpError(400, f"the request's body ends in the middle of its {encoding} data")
    return unpacked


def _window(body: bytes | bytearray, encoding: str) -> int:
    if encoding in ("gzip", "x-gzip"):
        return GZIP
    if encoding == "deflate":
        # Some clients leave out the zlib header, whose first byte has these bits.
        has_header = body[:1] and body[0] & 0xF == zlib.DEFLATED
        return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    raise HttpError(415, f"Content-Encoding must be gzip or deflate, not {encoding[:64]}")
