"""Translates Responses requests into chat requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dynamo.api.responses.client_tools import OFFERED, client_call, printed
from dynamo.api.responses.request import (
    APPLY_PATCH,
    CLIENT_TOOLS,
    LOCAL_SHELL,
    SHELL,
    FlatJsonSchemaFormat,
    InputItem,
    InputPart,
    PatchOperation,
    ResponsesRequest,
    ResponsesTool,
    ShellAction,
    ShellCommands,
    TextConfig,
)
from dynamo.pipeline.custom_tools import called_function
from dynamo.pipeline.schema import check_schema
from dynamo.pipeline.validate import check_tool_name
from dynamo.protocols.chat import (
    AllowedTool,
    AllowedToolChoice,
    AllowedTools,
    AnyTool,
    ChatRequest,
    CustomCall,
    CustomDefinition,
    CustomTool,
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    GrammarFormat,
    ImagePart,
    ImageUrl,
    InputGrammar,
    Message,
    NamedToolChoice,
    Part,
    RefusalPart,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import ENGINE_FIELDS, JsonObjectFormat, JsonSchema, JsonSchemaFormat, ResponseFormat

_UNSUPPORTED = {
    "prompt": "prompts are not stored on this server",
    "context_management": "the whole conversation is read",
    "moderation": "moderation is not supported",
}
_COMPUTER_TOOLS = ("computer", "computer_use_preview")
_KNOWN = ("function", "custom", *CLIENT_TOOLS)
_CALL_FIELDS = {
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "local_shell_call": ("call_id", "action"),
    "shell_call": ("call_id", "action"),
    "apply_patch_call": ("call_id", "operation"),
}
"""What each kind of call must have."""
_OUTPUTS = tuple(f"{kind}_output" for kind in _CALL_FIELDS)
_LOGPROBS = "message.output_text.logprobs"
_REPEATED = ("user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_MAX_REPEATED = 1 << 16
"""Characters of a field that the response repeats, and that are stored with it."""
_RESPONSES_NAMES = {"max_completion_tokens": "max_output_tokens", "messages": "input"}
"""The names of fields in a Responses request, by their names in a chat request."""


def responses_to_chat(request: ResponsesRequest, history: Sequence[InputItem] = ()) -> ChatRequest:
    """`history` is what comes before the request's own input, in which references must have been resolved.

    Raises `InvalidRequest` for features of OpenAI's own service.
    """
    for name, why in _UNSUPPORTED.items():
        if getattr(request, name) not in (None, False):
            raise InvalidRequest.unsupported(name, why)
    _reject_long_repetitions(request)
    for field in (request.nvext and request.nvext.extra_fields) or ():
        if field in ("completion_token_ids", "prompt_logprobs"):
            raise InvalidRequest.unsupported("nvext.extra_fields", f"a response has no place for {field!r}")
    logprobs = request.top_logprobs is not None or _LOGPROBS in (request.include or ())
    chat = ChatRequest(
        model=request.model,
        messages=_messages(request, history),
        stream=request.stream,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        logprobs=True if logprobs else None,
        top_logprobs=request.top_logprobs,
        tools=(_tools(request) or None) if request.tools else None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        response_format=_response_format(request.text),
        chat_template_kwargs=request.chat_template_kwargs,
        chat_template_args=request.chat_template_args,
        metadata=dict(request.metadata) if request.metadata is not None else None,
        user=request.user,
    )
    for name in ENGINE_FIELDS:
        setattr(chat, name, getattr(request, name))
    return chat


def _reject_long_repetitions(request: ResponsesRequest) -> None:
    lengths = {name: len(getattr(request, name) or "") for name in _REPEATED}
    lengths["metadata"] = sum(len(key) + len(value) for key, value in (request.metadata or {}).items())
    for name, length in lengths.items():
        if length > _MAX_REPEATED:
            raise InvalidRequest.bad_value(name, f"at most {_MAX_REPEATED} characters are allowed, got {length}")


def check_items(items: Sequence[InputItem], name: str) -> None:
    """Raises `InvalidRequest`, which speaks of `name`, for items that could not be part of a request's input."""
    try:
        _chat_messages([], (), items)
    except InvalidRequest as error:
        message, param = (text and text.replace("input[", f"{name}[") for text in (error.message, error.param))
        raise InvalidRequest(message or "", param, error.code) from None


def with_responses_names(error: InvalidRequest) -> InvalidRequest:
    """An error found in the translated chat request, with the field names of the client's request."""
    message = error.message
    for chat_name, name in _RESPONSES_NAMES.items():
        message = re.sub(rf"\b{chat_name}\b", name, message)
    return InvalidRequest(message, error.param and _RESPONSES_NAMES.get(error.param, error.param), error.code)


def hosted_tools(request: ResponsesRequest) -> list[str]:
    """The types of those tools of a translated request that OpenAI would run; its chat request is without them."""
    return [each.tool.type for each in request.functions() if not each.tool.runs_at_client] if request.tools else []


def _response_format(text: TextConfig | None) -> ResponseFormat | None:
    match text.format if text else None:
        case JsonObjectFormat() as form:
            return form
        case FlatJsonSchemaFormat() as form:
            check_schema(form.schema, "text.format.schema")
            return JsonSchemaFormat(
                JsonSchema(name=form.name, schema=form.schema, description=form.description, strict=form.strict)
            )
    return None


def _tools(request: ResponsesRequest) -> list[AnyTool]:
    translated: list[AnyTool] = []
    for function in request.functions():
        tool, where = function.tool, function.where
        if not tool.runs_at_client:
            if tool.type not in _COMPUTER_TOOLS and request.tool_choice in (None, "auto", "none"):
                continue  # OpenAI's service would run it; without it the model answers as well as it can
            raise InvalidRequest.unsupported(f"{where}.type", _why_not(tool.type[:64]))
        if function.name is None:
            raise InvalidRequest.missing(f"{where}.name")
        if offered := OFFERED.get(tool.type):
            translated.append(offered)
            continue
        if tool.type == "custom":
            translated.append(_custom(function.name, tool, where))
            continue
        if tool.parameters is not None:
            check_schema(tool.parameters, f"{where}.parameters")
        definition = FunctionDefinition(
            name=function.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
        translated.append(Tool(function=definition))
    return translated


def _custom(name: str, tool: ResponsesTool, where: str) -> CustomTool:
    given, form = tool.format, None
    if given is not None and given.type == "grammar":
        if given.syntax is None or given.definition is None:
            raise InvalidRequest.missing(f"{where}.format.{'definition' if given.syntax else 'syntax'}")
        form = GrammarFormat(grammar=InputGrammar(syntax=given.syntax, definition=given.definition))
    return CustomTool(custom=CustomDefinition(name=name, description=tool.description, format=form))


def _why_not(kind: str) -> str:
    if kind in _COMPUTER_TOOLS:
        return (
            f"{kind!r} tools are run by the client, but only OpenAI's models know how to call them; offer a 'function'"
        )
    if kind == SHELL:
        return "a 'shell' runs at OpenAI unless its environment is of type 'local'"
    return f"{kind!r} tools run at OpenAI; only {', '.join(map(repr, _KNOWN))} are known"


def _tool_choice(request: ResponsesRequest) -> ToolChoice | None:
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "allowed_tools":
        names = [tool.type if tool.type in CLIENT_TOOLS else tool.name for tool in choice.tools or ()]
        allowed = [AllowedTool(function=FunctionName(name)) for name in names if name]
        return AllowedToolChoice(allowed_tools=AllowedTools(mode=choice.mode or "auto", tools=allowed))
    if choice.type not in _KNOWN:
        why = f"{choice.type[:64]!r} is unknown; only {', '.join(map(repr, _KNOWN))} can be named"
        raise InvalidRequest.unsupported("tool_choice.type", why)
    chosen = choice.type if choice.type in CLIENT_TOOLS else choice.name
    name = check_tool_name(chosen, [each.name for each in request.functions()], "tool_choice.name")
    return NamedToolChoice(function=FunctionName(name))


def _messages(request: ResponsesRequest, history: Sequence[InputItem]) -> list[Message]:
    messages = [Message(role="system", content=request.instructions)] if request.instructions else []
    given = [InputItem(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    _chat_messages(messages, history, given)
    if not messages:
        raise InvalidRequest.bad_value("input", "must not be empty")
    return messages


def _chat_messages(messages: list[Message], history: Sequence[InputItem], given: Sequence[InputItem]) -> None:
    """Add what the items say to `messages`."""
    turn: Message | None = None
    for index, item in enumerate((*history, *given), start=-len(history)):
        where = f"input[{index}]" if index >= 0 else "history"
        if item.is_reference:
            raise InvalidRequest.unsupported(where, "a reference leads nowhere here; send the item itself")
        match item.type:
            case "reasoning":
                # Reasoning, text and calls are separate items in this API, but one message in a chat.
                turn = _assistant(messages, turn if turn is not None and _only_reasoning(turn) else None)
                turn.reasoning_content = (turn.reasoning_content or "") + _reasoning(item)
            case kind if kind in _CALL_FIELDS:
                turn = _assistant(messages, turn)
                turn.tool_calls = [*(turn.tool_calls or ()), _call(item, where)]
            case kind if kind in _OUTPUTS:
                turn = None
                messages.append(_call_output(item, where))
            case "mcp_call":
                call_id = item.approval_request_id or item.id or ""
                function = FunctionCall(f"{item.server_label}__{item.name}", item.arguments or "")
                turn = _assistant(messages, None)
                turn.tool_calls = [ToolCall(id=call_id, function=function)]
                turn = None
                said = item.output if isinstance(item.output, str) else ""
                content = said if item.error is None else f"Error: {item.error}"
                messages.append(Message(role="tool", tool_call_id=call_id, content=content))
            case "mcp_list_tools" | "mcp_approval_request" | "mcp_approval_response":
                pass  # what was decided is in the call that follows
            case None | "message" if item.role == "assistant":
                turn = _assistant(messages, turn if turn is not None and _only_reasoning(turn) else None)
                turn.content = _content(item.content, f"{where}.content")
            case None | "message":
                turn = None
                if item.role is None:
                    raise InvalidRequest.missing(f"{where}.role")
                messages.append(Message(role=item.role, content=_content(item.content, f"{where}.content")))
            case other:
                raise InvalidRequest.unsupported(f"{where}.type", f"items of type {other[:64]!r} cannot be read")


def _assistant(messages: list[Message], turn: Message | None) -> Message:
    if turn is None:
        turn = Message(role="assistant")
        messages.append(turn)
    return turn


def _only_reasoning(turn: Message) -> bool:
    return turn.content is None and not turn.tool_calls


def _reasoning(item: InputItem) -> str:
    parts = item.content if isinstance(item.content, list) and item.content else item.summary or []
    return "".join(part.text or "" for part in parts)


def _call(item: InputItem, where: str) -> ToolCall:
    for name in _CALL_FIELDS[item.type or ""]:
        if getattr(item, name) is None:
            raise InvalidRequest.missing(f"{where}.{name}")
    if item.type == "custom_tool_call":
        called = called_function(CustomCall(item.name or "", item.input or ""))
    elif item.type == "local_shell_call":
        called = client_call(LOCAL_SHELL, item.action, ShellAction, f"{where}.action")
    elif item.type == "shell_call":
        called = client_call(SHELL, item.action, ShellCommands, f"{where}.action")
    elif item.type == "apply_patch_call":
        called = client_call(APPLY_PATCH, item.operation, PatchOperation, f"{where}.operation")
    else:
        called = FunctionCall(item.name or "", item.arguments or "")
    return ToolCall(id=item.call_id or "", function=called)


def _call_output(item: InputItem, where: str) -> Message:
    # OpenAI's types of a shell's output have the id of the call in `id`.
    call_id = item.call_id or (item.id if item.type == "local_shell_call_output" else None)
    if not call_id:
        raise InvalidRequest.missing(f"{where}.call_id")
    content: str | list[Part]
    if item.type == "apply_patch_call_output" and not item.output:
        content = item.status or "completed"
    elif item.type == "shell_call_output" and isinstance(item.output, list):
        content = "\n".join(printed(part) for part in item.output)
    else:
        content = _content(item.output, f"{where}.output")
    if item.type == "apply_patch_call_output" and item.status == "failed" and item.output:
        content = f"failed: {content}"
    return Message(role="tool", tool_call_id=call_id, content=content)


def _content(content: str | list[InputPart] | None, where: str) -> str | list[Part]:
    if content is None:
        raise InvalidRequest.missing(where)
    if isinstance(content, str):
        return content
    return [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def _part(part: InputPart, where: str) -> Part:
    match part.type:
        case "":
            raise InvalidRequest.missing(f"{where}.type")
        case "input_text" | "output_text" | "text" if part.text is not None:
            return TextPart(part.text)
        case "input_text" | "output_text" | "text":
            raise InvalidRequest.missing(f"{where}.text")
        case "refusal":
            return RefusalPart(part.refusal or "")
        case "input_image" if part.image_url is not None:
            return ImagePart(ImageUrl(part.image_url, part.detail))
        case "input_image":
            why = "an image must come as `image_url`; uploaded files serve batches only"
            raise InvalidRequest.unsupported(where, why)
    raise InvalidRequest.unsupported(f"{where}.type", f"content of type {part.type[:64]!r} cannot be read")
