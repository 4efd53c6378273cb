"""OpenAI's tools that the client runs, `local_shell`, `shell` and `apply_patch`: offered to the model as functions."""

from __future__ import annotations

import json

import msgspec
from msgspec import Struct

from dynamo.api.responses.request import APPLY_PATCH, LOCAL_SHELL, SHELL, InputPart
from dynamo.protocols.chat import FunctionCall, FunctionDefinition, Tool
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import JsonObject

_SHELL_ARGUMENTS: JsonObject = {
    "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "working_directory": {"type": "string"},
    "timeout_ms": {"type": "integer"},
}
_COMMANDS_ARGUMENTS: JsonObject = {
    "commands": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "timeout_ms": {"type": "integer"},
    "max_output_length": {"type": "integer"},
}
_PATCH_ARGUMENTS: JsonObject = {
    "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
    "path": {"type": "string"},
    "diff": {"type": "string"},
}
_ABOUT_PATCHES = (
    "Create, update or delete a file of the user. In the `diff` of a new file each line begins with +. In that of an "
    "update each part begins with a line @@, then come lines that begin with a space (unchanged), - (removed) or + "
    "(added). Without `diff` for delete_file."
)


def _offered(name: str, about: str, arguments: JsonObject, *required: str) -> Tool:
    parameters = {"type": "object", "properties": arguments, "required": list(required)}
    return Tool(function=FunctionDefinition(name=name, description=about, parameters=parameters))


OFFERED = {
    LOCAL_SHELL: _offered(
        LOCAL_SHELL, "Run a command on the user's machine: a program and its arguments.", _SHELL_ARGUMENTS, "command"
    ),
    SHELL: _offered(SHELL, "Run command lines in a shell on the user's machine.", _COMMANDS_ARGUMENTS, "commands"),
    APPLY_PATCH: _offered(APPLY_PATCH, _ABOUT_PATCHES, _PATCH_ARGUMENTS, "type", "path"),
}
"""The functions that the model is offered, by the type of the client's tool."""


def client_call(name: str, given: JsonObject | None, kind: type[Struct], where: str) -> FunctionCall:
    """The call as the model made it."""
    try:
        asked = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest.bad_value(where, str(error)) from None
    parameters = OFFERED[name].function.parameters or {}
    arguments = {key: value for key in parameters["properties"] if (value := getattr(asked, key))}
    return FunctionCall(name, json.dumps(arguments, ensure_ascii=False))


def printed(part: InputPart) -> str:
    """What a command wrote, and how it ended."""
    outcome = part.outcome or {}
    ended = "timed out" if outcome.get("type") == "timeout" else f"exit code {outcome.get('exit_code', 0)}"
    return "\n".join(text for text in (part.stdout, part.stderr, f"({ended})") if text)
