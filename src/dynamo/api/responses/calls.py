"""The calls in a response, each in the form in which the client offered the tool."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from dynamo.api.responses.mcp_items import McpApprovalRequestItem
from dynamo.api.responses.mcp_turn import APPROVAL, McpFunction
from dynamo.api.responses.request import (
    APPLY_PATCH,
    LOCAL_SHELL,
    SHELL,
    PatchOperation,
    ResponsesRequest,
    ShellAction,
    ShellCommands,
)

ItemStatus = Literal["in_progress", "completed", "incomplete"]

_ITEM_PREFIXES = {"custom": "ctc", LOCAL_SHELL: "lsh", SHELL: "sh", APPLY_PATCH: "apc"}


class _CommandLine(Struct):
    command: str


class FunctionCallItem(Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET
    """The namespace in which the function was offered."""


class CustomCallItem(Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class LocalShellCallItem(Struct, kw_only=True, tag_field="type", tag="local_shell_call"):
    id: str
    call_id: str
    action: ShellAction
    status: ItemStatus


class ShellCallItem(Struct, kw_only=True, tag_field="type", tag="shell_call"):
    id: str
    call_id: str
    action: ShellCommands
    status: ItemStatus
    environment: dict[str, str] = field(default_factory=lambda: {"type": "local"})


class PatchCallItem(Struct, kw_only=True, tag_field="type", tag="apply_patch_call"):
    id: str
    call_id: str
    operation: PatchOperation
    status: ItemStatus


CallItem = (
    FunctionCallItem | CustomCallItem | LocalShellCallItem | ShellCallItem | PatchCallItem | McpApprovalRequestItem
)


class CallItems:
    """Makes the items for calls, in the form in which the client offered the tools."""

    def __init__(
        self, request: ResponsesRequest, response_id: str, mcp: Mapping[str, McpFunction] | None = None
    ) -> None:
        self._offered = request.translated()
        self._mcp = mcp or {}
        self._response_id = response_id

    def begin(self, index: int, call_id: str, name: str) -> CallItem:
        """The item with this index in the output, still without the arguments of the call."""
        if name in self._mcp:
            function = self._mcp[name]
            id = item_id(f"{APPROVAL}_{function.tool.digest()}", self._response_id, index)
            return McpApprovalRequestItem(id=id, server_label=function.server, name=function.tool.name, arguments="")
        offered = self._offered.get(name)
        kind = offered.tool.type if offered else "function"
        id = item_id(_ITEM_PREFIXES.get(kind, "fc"), self._response_id, index)
        match kind:
            case "local_shell":
                return LocalShellCallItem(id=id, call_id=call_id, action=ShellAction(command=[]), status="in_progress")
            case "shell":
                return ShellCallItem(id=id, call_id=call_id, action=ShellCommands(commands=[]), status="in_progress")
            case "apply_patch":
                return PatchCallItem(id=id, call_id=call_id, operation=patch_operation(""), status="in_progress")
        name = (offered and offered.tool.name) or name
        namespace = (offered and offered.namespace) or UNSET
        if kind == "custom":
            return CustomCallItem(
                id=id, call_id=call_id, name=name, input="", status="in_progress", namespace=namespace
            )
        return FunctionCallItem(
            id=id, call_id=call_id, name=name, arguments="", status="in_progress", namespace=namespace
        )


def end_call(item: CallItem, arguments: str) -> None:
    """Write all that the model sent into its item."""
    match item:
        case FunctionCallItem() | McpApprovalRequestItem():
            item.arguments = arguments
        case CustomCallItem():
            item.input = arguments
        case LocalShellCallItem():
            item.action = shell_action(arguments)
        case ShellCallItem():
            item.action = shell_commands(arguments)
        case PatchCallItem():
            item.operation = patch_operation(arguments)


def shell_action(arguments: str) -> ShellAction:
    """What a call of `local_shell` asks for. Arguments that are not as offered become a command line for a shell."""
    try:
        return msgspec.json.decode(arguments, type=ShellAction)
    except (ValueError, RecursionError):
        pass
    try:
        line = msgspec.json.decode(arguments, type=_CommandLine).command
    except (ValueError, RecursionError):
        line = arguments
    return ShellAction(command=["bash", "-lc", line] if line else [])


def shell_commands(arguments: str) -> ShellCommands:
    """What a call of `shell` asks for; arguments that are not as offered are read as those of `local_shell` are."""
    try:
        return msgspec.json.decode(arguments, type=ShellCommands)
    except (ValueError, RecursionError):
        action = shell_action(arguments)
    is_line = action.command[:2] == ["bash", "-lc"] and len(action.command) == 3
    line = action.command[2] if is_line else shlex.join(action.command)
    return ShellCommands(commands=[line] if line else [], timeout_ms=action.timeout_ms)


def patch_operation(arguments: str) -> PatchOperation:
    """What a call of `apply_patch` asks for. Other arguments are a diff of no file, which the client will reject."""
    try:
        return msgspec.json.decode(arguments, type=PatchOperation)
    except (ValueError, RecursionError):
        return PatchOperation(type="update_file", path="", diff=arguments)


def item_id(prefix: str, response_id: str, index: int) -> str:
    return f"{prefix}_{response_id.removeprefix('resp_')}_{index}"
