"""The MCP servers that the operator has named, and sessions with them."""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

import msgspec
from msgspec import Struct

from dynamo import __version__
from dynamo.api.mcp.http import HttpTransport, open_http
from dynamo.api.mcp.messages import (
    MAX_PAGES,
    MAX_TOOLS,
    SECONDS,
    VERSION,
    McpError,
    McpTool,
    ToolPage,
    ToolResult,
    Transport,
)
from dynamo.api.mcp.stdio import open_stdio
from dynamo.protocols.errors import StartError
from dynamo.protocols.fields import JsonObject

T = TypeVar("T")


class McpServer(Struct, frozen=True):
    label: str
    url: str | None = None
    command: tuple[str, ...] = ()
    """Starts the program that is the server."""


def mcp_servers(urls: Sequence[str], commands: Sequence[str]) -> dict[str, McpServer]:
    """By label; raises StartError for a label that two have, and for a command that cannot be read."""
    found: dict[str, McpServer] = {}
    for flag, texts in (("--mcp-server", urls), ("--mcp-command", commands)):
        for text in texts:
            label, _, rest = text.partition("=")
            if label in found:
                raise StartError(f"{flag}: two MCP servers have the label '{label}'; give one of them another")
            try:
                command = () if flag == "--mcp-server" else tuple(shlex.split(rest))
            except ValueError as error:
                raise StartError(f"{flag} {label}: {error}") from None
            found[label] = McpServer(label, None if command else rest, command)
    return found


class McpSession:
    """A conversation with one server, which has said what it is."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ids = itertools.count(1)

    async def begin(self) -> None:
        about = {"name": "dynamo", "version": __version__}
        await self._ask("initialize", {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": about})
        await self._within(self._transport.notify({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    async def tools(self) -> list[McpTool]:
        found: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = _read(await self._ask("tools/list", {"cursor": cursor} if cursor else {}), ToolPage)
            found += page.tools
            if len(found) > MAX_TOOLS:
                raise McpError(f"it has more than {MAX_TOOLS} tools")
            cursor = page.next_cursor
            if not cursor:
                break
        return found

    async def call(self, name: str, arguments: JsonObject) -> ToolResult:
        return _read(await self._ask("tools/call", {"name": name, "arguments": arguments}), ToolResult)

    async def _ask(self, method: str, params: JsonObject) -> JsonObject:
        id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        return await self._within(self._transport.exchange(message))

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(SECONDS):
                return await work
        except TimeoutError:
            raise McpError(f"it has not answered for {SECONDS:g} s") from None


def _read(result: JsonObject, kind: type[T]) -> T:
    try:
        return msgspec.convert(result, kind)
    except (ValueError, RecursionError):
        raise McpError("its answer is not as the protocol says") from None


@asynccontextmanager
async def open_session(server: McpServer, headers: Mapping[str, str] = {}) -> AsyncIterator[McpSession]:
    """Raises McpError. `headers` go to a server over HTTP."""
    async with AsyncExitStack() as stack:
        transport: Transport
        if server.url is not None:
            transport = over_http = await stack.enter_async_context(open_http(server.url, headers))
            stack.push_async_callback(_part, over_http)
        else:
            transport = await stack.enter_async_context(open_stdio(server.command))
        session = McpSession(transport)
        await session.begin()
        yield session


async def _part(transport: HttpTransport) -> None:
    with suppress(TimeoutError, McpError, OSError):
        async with asyncio.timeout(2.0):
            await transport.close()
