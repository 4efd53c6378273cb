"""Guided decoding: `guided_*`, `response_format` and a forced tool choice, as one dict for the engine."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from dynamo.pipeline.constraint_limits import check_repetition, check_schema_limits, without_large_maxima
from dynamo.pipeline.parse import CallForm
from dynamo.pipeline.schema import check_schema
from dynamo.protocols.chat import AnyTool, ChatRequest, NamedToolChoice
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import GenerationFields, JsonObjectFormat, JsonSchemaFormat, StructuredOutputs

MAX_CALLS = 32
"""With `parallel_tool_calls` a forced choice may call this often: a small model might never stop."""
MAX_BYTES = 128 * 1024
"""The limit of a constraint: llguidance compiles this in 0.2 s, and four times as much in three seconds."""
MAX_GUIDED_CHOICES = 4096
GUIDED_FIELDS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_constraints = attrgetter("response_format", "guided_whitespace_pattern", *GUIDED_FIELDS)
_NO_CONSTRAINTS = (None,) * (2 + len(GUIDED_FIELDS))
_OF_SGLANG = {"json_schema": "guided_json", "regex": "guided_regex", "ebnf": "guided_grammar"}


def guided_decoding(request: GenerationFields) -> dict[str, Any] | None:
    """The constraint on the output, or None. A forced tool choice takes precedence over `response_format`."""
    if not _may_constrain(request):
        return None
    guidance = _forced_tools(request) or _guided(request) or _response_format(request)
    if guidance is None:
        return None
    if request.guided_decoding_backend:
        guidance["backend"] = request.guided_decoding_backend
    if request.guided_whitespace_pattern:
        guidance["whitespace_pattern"] = request.guided_whitespace_pattern
    return guidance


def _may_constrain(request: GenerationFields) -> bool:
    """False for most requests, at little cost."""
    return _constraints(request) != _NO_CONSTRAINTS or getattr(request, "tool_choice", None) is not None


def guided_calls(request: ChatRequest, form: CallForm) -> dict[str, Any] | None:
    """A forced tool choice in the form in which the model itself writes calls, for engines that can follow it."""
    forced = choosable_tools(request)
    if not forced:
        return None
    schema = _calls_schema(forced, "arguments", limit=1)
    call = schema["items"] | {key: schema[key] for key in ("$defs",) if key in schema}
    return {"json": call, "limit": _most_calls(request), **structs.asdict(form)}


def guiding_field(request: GenerationFields) -> str | None:
    """The field that constrains the output, if there is one."""
    if not _may_constrain(request):
        return None
    if _forced_tools(request):
        return "tool_choice"
    if _response_format(request):
        return "response_format"
    return next((name for name in GUIDED_FIELDS if getattr(request, name) is not None), None)


def forced_tool(request: ChatRequest) -> str | None:
    """The tool that the client named in `tool_choice`: the whole output is then its arguments."""
    return request.tool_choice.function.name if isinstance(request.tool_choice, NamedToolChoice) else None


def tool_finish_reason(request: ChatRequest) -> str:
    """The finish reason of an answer with tool calls: as OpenAI does, `stop` if the client named the tool."""
    return "stop" if forced_tool(request) else "tool_calls"


def guided_json(request: GenerationFields) -> dict[str, Any] | None:
    """The schema in `guided_json`, which may be an object or a string of JSON."""
    schema: Any = request.guided_json
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (ValueError, RecursionError):
            raise InvalidRequest(
                "guided_json: the string is not valid JSON.", "guided_json", "invalid_schema"
            ) from None
        if not isinstance(schema, dict):
            raise InvalidRequest("guided_json: expected a JSON object.", "guided_json", "invalid_schema")
    return schema  # type: ignore[no-any-return]


def apply_structured_outputs(request: GenerationFields, wanted: StructuredOutputs) -> None:
    """Write the constraints into the `guided_*` fields, which mean the same."""
    request.structured_outputs = None
    if wanted.structural_tag is not None:
        raise InvalidRequest.unsupported("structured_outputs.structural_tag", "answers are constrained as a whole")
    schema = {"type": "object"} if wanted.json is None and wanted.json_object else wanted.json
    values = (schema, wanted.regex, wanted.choice, wanted.grammar, wanted.whitespace_pattern)
    for name, value in zip((*GUIDED_FIELDS, "guided_whitespace_pattern"), values, strict=True):
        if value is None:
            continue
        if getattr(request, name) is not None:
            raise InvalidRequest.bad_value("structured_outputs", f"says the same as `{name}`; give one of them")
        setattr(request, name, value)


def apply_fields_of_sglang(request: GenerationFields) -> None:
    """Write `json_schema`, `regex` and `ebnf` into the `guided_*` fields, which mean the same."""
    for name, ours in _OF_SGLANG.items():
        value = getattr(request, name)
        if value is None:
            continue
        if getattr(request, ours) is not None:
            raise InvalidRequest.bad_value(name, f"says the same as `{ours}`; give one of them")
        setattr(request, ours, value)
        setattr(request, name, None)


def check_guidance(request: GenerationFields) -> None:
    """Allow at most one constraint, and only one that an engine can compile."""
    if _constraints(request) == _NO_CONSTRAINTS:
        return
    given = [name for name in GUIDED_FIELDS if getattr(request, name) is not None]
    if len(given) > 1:
        listed = ", ".join(f"`{name}`" for name in given)
        raise InvalidRequest(f"Only one of {listed} may be given.", given[1], "invalid_value")
    json_format = isinstance(request.response_format, JsonObjectFormat | JsonSchemaFormat)
    if given and json_format:
        message = f"`{given[0]}` and `response_format` exclude each other."
        raise InvalidRequest(message, "response_format", "invalid_value")
    if request.guided_whitespace_pattern and not json_format and given != ["guided_json"]:
        message = "`guided_whitespace_pattern` needs `guided_json` or a JSON `response_format`."
        raise InvalidRequest(message, "guided_whitespace_pattern", "invalid_value")
    for name in given:
        if isinstance(value := getattr(request, name), str | list):
            check_size(value, name)
    if request.guided_choice is not None and len(request.guided_choice) > MAX_GUIDED_CHOICES:
        why = f"at most {MAX_GUIDED_CHOICES} choices are allowed, got {len(request.guided_choice)}"
        raise InvalidRequest.bad_value("guided_choice", why)
    schema = guided_json(request)
    if schema is not None:
        check_schema(schema, "guided_json")
        check_size(schema, "guided_json")
        check_schema_limits(schema, "guided_json")
    if isinstance(request.response_format, JsonSchemaFormat):
        where = "response_format.json_schema.schema"
        if request.response_format.json_schema.schema is None:
            raise InvalidRequest.missing(where)
        check_schema(request.response_format.json_schema.schema, where)
        check_size(request.response_format.json_schema.schema, where)
        check_schema_limits(request.response_format.json_schema.schema, where)
    for name in ("guided_regex", "guided_grammar"):
        _check_brackets(getattr(request, name) or "", name)
        check_repetition(getattr(request, name) or "", name)


def check_size(constraint: object, param: str) -> None:
    """Limit what an engine must compile: some take quadratic time, and one of them stops all its answers meanwhile."""
    size = len(msgspec.json.encode(constraint))
    if size > MAX_BYTES:
        raise InvalidRequest.bad_value(param, f"at most {MAX_BYTES} bytes of JSON are allowed, got {size}")


def _check_brackets(text: str, param: str) -> None:
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > 500:
                raise InvalidRequest.bad_value(param, "brackets nested more than 500 deep")
        elif character in ")]}":
            depth -= 1


def _guided(request: GenerationFields) -> dict[str, Any] | None:
    if request.guided_json is not None:
        return {"json": without_large_maxima(guided_json(request))}
    if request.guided_regex is not None:
        return {"regex": request.guided_regex}
    if request.guided_choice is not None:
        return {"choice": request.guided_choice}
    if request.guided_grammar is not None:
        return {"grammar": request.guided_grammar}
    return None


def _response_format(request: GenerationFields) -> dict[str, Any] | None:
    match request.response_format:
        case JsonObjectFormat():
            return {"json": {"type": "object"}}
        case JsonSchemaFormat(json_schema=named):
            return {"json": without_large_maxima(named.schema)}
    return None


def _forced_tools(request: GenerationFields) -> dict[str, Any] | None:
    if not isinstance(request, ChatRequest) or not (tools := choosable_tools(request)):
        return None
    if forced_tool(request) is not None:
        return {"json": _parameters(tools[0])}
    return {"json": _calls_schema(tools, "parameters", _most_calls(request))}


def choosable_tools(request: ChatRequest) -> list[AnyTool]:
    """The tools one of which must be called; none if the model may also answer with text."""
    if (name := forced_tool(request)) is not None:
        return [tool for tool in request.tools or () if tool.function.name == name]
    return (request.tools or []) if request.tool_choice == "required" else []


def _most_calls(request: ChatRequest) -> int:
    return MAX_CALLS if request.parallel_tool_calls and forced_tool(request) is None else 1


def _parameters(tool: AnyTool) -> dict[str, Any]:
    parameters: dict[str, Any] = without_large_maxima(tool.function.parameters or {"type": "object", "properties": {}})
    return parameters


def _calls_schema(tools: list[AnyTool], key: str, limit: int) -> dict[str, Any]:
    """The schema of a list of calls of any of the tools, each an object of a name and, under `key`, arguments."""
    shared: dict[str, Any] = {}
    variants = []
    for tool in tools:
        name, parameters = tool.function.name, _parameters(tool)
        rebased = _rebased(parameters, f"#/$defs/{name}")
        if rebased != parameters:
            shared[name], rebased = rebased, {"$ref": f"#/$defs/{name}"}
        properties = {"name": {"type": "string", "enum": [name]}, key: rebased}
        variants.append({"type": "object", "properties": properties, "required": ["name", key]})
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": limit, "items": {"anyOf": variants}}
    if shared:
        schema["$defs"] = shared
    return schema


def _rebased(node: Any, root: str) -> Any:
    """The schema with references to its own root `#` pointing to `root` instead."""
    if isinstance(node, list):
        return [_rebased(child, root) for child in node]
    if not isinstance(node, dict):
        return node
    return {
        key: root + child[1:] if key == "$ref" and isinstance(child, str) else _rebased(child, root)
        for key, child in node.items()
    }
