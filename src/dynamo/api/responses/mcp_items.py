"""The items of a response that speak of MCP servers."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class ListedTool(Struct, kw_only=True):
    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: None = None


class McpListToolsItem(Struct, kw_only=True, tag_field="type", tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: list[ListedTool]
    error: str | None = None


class McpApprovalRequestItem(Struct, kw_only=True, tag_field="type", tag="mcp_approval_request"):
    """A call that the model asks for; it runs once the client has approved it."""

    id: str
    server_label: str
    name: str
    arguments: str


class McpCallItem(Struct, kw_only=True, tag_field="type", tag="mcp_call"):
    """A call that was approved and has run, or why it has not."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | None = None
    approval_request_id: str
    status: Literal["completed", "failed"] = "completed"
