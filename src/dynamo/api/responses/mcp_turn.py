"""MCP servers in a response: their tools are offered to the model, and approved calls run before it answers.

A call of such a tool ends the response with a request for approval. The client approves it in its next request. The id
of a request for approval has the digest of the tool's definition: one that has changed since does not run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from dynamo.api.mcp.messages import McpError, McpTool
from dynamo.api.mcp.servers import McpServer, McpSession, open_session
from dynamo.api.responses.mcp_items import ListedTool, McpCallItem, McpListToolsItem
from dynamo.api.responses.request import InputItem, ResponsesRequest, ResponsesTool
from dynamo.pipeline.schema import check_schema
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import JsonObject

MCP = "mcp"
APPROVAL = "mcpr"
"""The prefix of the ids of requests for approval: the digest of the tool follows."""
LONGEST_NAME = 64
LONGEST_OUTPUT = 256 << 10
"""Characters of a result that a model reads."""
_UNUSUAL = re.compile(r"[^a-zA-Z0-9_-]")


class McpFunction(Struct, frozen=True):
    """A tool of a server, as it was when it was offered."""

    server: str
    tool: McpTool


class McpTurn(Struct):
    request: ResponsesRequest
    """The request with functions in the place of servers, and what became of approved calls among its items."""
    functions: dict[str, McpFunction] = {}
    """By the names that the model calls."""
    begins_with: list[McpListToolsItem | McpCallItem] = []
    """The first items of the response."""


def uses_mcp(request: ResponsesRequest) -> bool:
    return any(tool.type == MCP for tool in request.tools or ())


async def mcp_turn(
    request: ResponsesRequest,
    history: Sequence[InputItem],
    servers: Mapping[str, McpServer],
    *,
    is_admin: bool,
    owner: str,
) -> McpTurn:
    """`owner` is the part of the ids of items by which they lead to their response. Raises InvalidRequest."""
    given = [] if isinstance(request.input, str) else request.input
    waiting = _approvals([*history, *given])
    turn = McpTurn(request)
    tools: list[ResponsesTool] = []
    for index, tool in enumerate(request.tools or ()):
        if tool.type != MCP:
            tools.append(tool)
            continue
        server = _server(tool, servers, f"tools[{index}]", is_admin=is_admin)
        tools += await _use(tool, server, waiting, turn, owner)
    for asked, answer in waiting:
        _ended(turn, asked, answer, owner, error=f"no tool of this request is the MCP server '{asked.server_label}'")
    outcomes = [_as_input(item) for item in turn.begins_with if isinstance(item, McpCallItem)]
    turn.request = structs.replace(request, tools=tools, input=[*given, *outcomes] if outcomes else request.input)
    return turn


def _server(tool: ResponsesTool, servers: Mapping[str, McpServer], where: str, *, is_admin: bool) -> McpServer:
    if not tool.server_label:
        raise InvalidRequest.missing(f"{where}.server_label")
    server = servers.get(tool.server_label)
    if server is None:
        known = f"it knows {', '.join(sorted(servers))}" if servers else "it knows none"
        raise InvalidRequest(
            f"This server was not told of an MCP server '{tool.server_label[:64]}': {known}. Start it with "
            "--mcp-server LABEL=URL.",
            f"{where}.server_label",
            "mcp_server_unknown",
        )
    if tool.server_url is not None and tool.server_url != server.url:
        why = "it is not the address with which this server was started; leave it out"
        raise InvalidRequest.bad_value(f"{where}.server_url", why)
    if server.command and not is_admin:
        why = f"'{server.label}' is a program on the server: it needs the key of an administrator"
        raise InvalidRequest.unsupported(f"{where}.server_label", why)
    if tool.require_approval not in (None, "always"):
        why = "only 'always' is: nothing runs here that was not approved, call by call"
        raise InvalidRequest.unsupported(f"{where}.require_approval", why)
    if tool.connector_id is not None:
        raise InvalidRequest.unsupported(f"{where}.connector_id", "connectors are OpenAI's own")
    return server


def _headers(tool: ResponsesTool) -> dict[str, str]:
    headers = dict(tool.headers or {})
    if tool.authorization:
        headers["Authorization"] = f"Bearer {tool.authorization}"
    if any(not text.isprintable() or not text.isascii() for pair in headers.items() for text in pair):
        raise InvalidRequest.bad_value("tools.headers", "printable ASCII is needed")
    return headers


async def _use(
    tool: ResponsesTool, server: McpServer, waiting: list[tuple[InputItem, InputItem]], turn: McpTurn, owner: str
) -> list[ResponsesTool]:
    """List the server's tools, run the approved calls of it, and return the tools as functions."""
    mine = [pair for pair in waiting if pair[0].server_label == server.label]
    waiting[:] = [pair for pair in waiting if pair not in mine]
    listed = McpListToolsItem(id=f"mcpl_{owner}_{len(turn.begins_with)}", server_label=server.label, tools=[])
    turn.begins_with.append(listed)
    found: list[McpTool] = []
    try:
        async with open_session(server, _headers(tool)) as session:
            found = [one for one in await session.tools() if _is_allowed(one, tool.allowed_tools)]
            for asked, answer in mine:
                await _run(session, found, asked, answer, turn, owner)
            mine = []
    except McpError as error:
        listed.error = f"The MCP server '{server.label}': {error}."
        for asked, answer in mine:
            if not any(one.approval_request_id == asked.id for one in turn.begins_with if isinstance(one, McpCallItem)):
                _ended(turn, asked, answer, owner, error=str(error))
    listed.tools = [
        ListedTool(name=one.name, description=one.description, input_schema=one.input_schema) for one in found
    ]
    functions = []
    for one in found:
        name = _function_name(server.label, one)
        turn.functions[name] = McpFunction(server.label, one)
        functions.append(
            ResponsesTool(type="function", name=name, description=one.description, parameters=_parameters(one))
        )
    return functions


def _is_allowed(tool: McpTool, allowed: list[str] | JsonObject | None) -> bool:
    names = allowed.get("tool_names") if isinstance(allowed, dict) else allowed
    return names is None or tool.name in names


def _function_name(label: str, tool: McpTool) -> str:
    name = _UNUSUAL.sub("_", f"{label}__{tool.name}")
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}_{tool.digest()[:8]}"


def _parameters(tool: McpTool) -> JsonObject | None:
    """None for a schema that cannot be held: the model still reads the description."""
    try:
        check_schema(tool.input_schema, "inputSchema")
    except InvalidRequest:
        return None
    return tool.input_schema


def _approvals(items: Sequence[InputItem]) -> list[tuple[InputItem, InputItem]]:
    """The requests for approval that were answered and have had no outcome yet, with their answers."""
    asked = {item.id: item for item in items if item.type == "mcp_approval_request"}
    over = {item.approval_request_id for item in items if item.type == "mcp_call"}
    answered = {item.approval_request_id: item for item in items if item.type == "mcp_approval_response"}
    for id in answered:
        if id not in asked:
            raise InvalidRequest.bad_value(
                "input", f"approval_request_id {str(id)[:80]!r} names no request for approval"
            )
    return [(asked[id], answer) for id, answer in answered.items() if id not in over]


async def _run(
    session: McpSession, found: list[McpTool], asked: InputItem, answer: InputItem, turn: McpTurn, owner: str
) -> None:
    if not answer.approve:
        _ended(turn, asked, answer, owner)
        return
    tool = next((one for one in found if one.name == asked.name), None)
    if tool is None:
        _ended(turn, asked, answer, owner, error="it has no such tool any more: the call was not run")
        return
    if (asked.id or "").split("_")[1:2] != [tool.digest()]:
        _ended(turn, asked, answer, owner, error="the tool has changed since it was offered: the call was not run")
        return
    try:
        arguments = msgspec.json.decode(asked.arguments or "{}", type=JsonObject)
    except (ValueError, RecursionError):
        _ended(turn, asked, answer, owner, error="the arguments are no JSON object: the call was not run")
        return
    try:
        result = await session.call(tool.name, arguments)
    except McpError as error:
        _ended(turn, asked, answer, owner, error=str(error))
        raise
    text = result.text()[:LONGEST_OUTPUT]
    _ended(
        turn, asked, answer, owner, output=None if result.is_error else text, error=text if result.is_error else None
    )


def _ended(
    turn: McpTurn,
    asked: InputItem,
    answer: InputItem,
    owner: str,
    *,
    output: str | None = None,
    error: str | None = None,
) -> None:
    if not answer.approve:
        error = f"the user did not approve this call{f': {answer.reason}' if answer.reason else ''}"
    turn.begins_with.append(
        McpCallItem(
            id=f"mcp_{owner}_{len(turn.begins_with)}",
            server_label=asked.server_label or "",
            name=asked.name or "",
            arguments=asked.arguments or "",
            output=output,
            error=error,
            approval_request_id=asked.id or "",
            status="failed" if error is not None else "completed",
        )
    )


def _as_input(item: McpCallItem) -> InputItem:
    return msgspec.convert(msgspec.to_builtins(item), InputItem)
