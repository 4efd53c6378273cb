"""An MCP server over HTTP: each message is a request, whose answer is JSON or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from dynamo.api.mcp.messages import MAX_MESSAGE, VERSION, McpError, RpcMessage, answer_to, decode
from dynamo.protocols.fields import JsonObject

ACCEPT = "application/json, text/event-stream"
CONNECT_SECONDS = 10.0


class HttpTransport:
    """One session. Redirects are not followed: a server could lead to what only this machine reaches."""

    def __init__(self, http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._http = http
        self._url = url
        # Not compressed: a small answer must not become a large one.
        own = {"Accept": ACCEPT, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._headers = {**headers, **own}
        self._session: dict[str, str] = {}

    async def exchange(self, message: JsonObject) -> JsonObject:
        async with self._post(message) as answer:
            if "mcp-session-id" in answer.headers:
                self._session = {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": VERSION}
            if answer.content_type == "text/event-stream":
                async for raw in _events(answer):
                    if (found := await self._heard(decode(raw), message["id"])) is not None:
                        return found
                raise McpError("it ended its answer without a result")
            if answer.content_type != "application/json":
                raise McpError(f"it answered with {answer.content_type[:64]!r} instead of JSON or events")
            found = await self._heard(decode(await _body(answer)), message["id"])
            if found is None:
                raise McpError("it answered another message than it was sent")
            return found

    async def notify(self, message: JsonObject) -> None:
        async with self._post(message):
            pass

    async def close(self) -> None:
        if self._session:
            async with self._http.delete(self._url, headers=self._headers | self._session, allow_redirects=False):
                pass

    async def _heard(self, heard: RpcMessage, id: int) -> JsonObject | None:
        """The result if this answers the message of that id; raises McpError for its error."""
        if heard.method is not None:
            if heard.id is not None:
                await self.notify(answer_to(heard))
            return None
        if heard.id != id:
            return None
        return result_of(heard)

    @asynccontextmanager
    async def _post(self, message: JsonObject) -> AsyncIterator[aiohttp.ClientResponse]:
        body, headers = msgspec.json.encode(message), self._headers | self._session
        try:
            async with self._http.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                if 300 <= answer.status < 400:
                    raise McpError(f"it redirects ({answer.status}), which is not followed")
                if answer.status >= 400:
                    raise McpError(f"it answered {answer.status}")
                yield answer
        except aiohttp.ClientError as error:
            raise McpError(f"it cannot be reached: {type(error).__name__}") from None


def result_of(heard: RpcMessage) -> JsonObject:
    if heard.error is not None:
        message = heard.error.get("message") if isinstance(heard.error, dict) else None
        raise McpError(f"it refused: {str(message or 'no reason given')[:300]}")
    if not isinstance(heard.result, dict):
        raise McpError("its answer has no result")
    return heard.result


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for chunk in answer.content.iter_any():
        found += chunk
        _check(len(found))
    return bytes(found)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each event."""
    pending, data, size = bytearray(), [], 0
    async for chunk in answer.content.iter_any():
        pending += chunk
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end]).rstrip(b"\r")
            del pending[: end + 1]
            if line.startswith(b"data:"):
                data.append(line[5:].lstrip(b" "))
                size += len(line)
            elif not line and data:
                yield b"\n".join(data)
                data, size = [], 0
            _check(size)
        _check(size + len(pending))


def _check(size: int) -> None:
    if size > MAX_MESSAGE:
        raise McpError(f"its answer is larger than {MAX_MESSAGE >> 20} MiB")


@asynccontextmanager
async def open_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[HttpTransport]:
    # Time is limited by the caller, for each message as a whole.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(
        timeout=limits, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as http:
        yield HttpTransport(http, url, headers)
