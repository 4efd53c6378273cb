"""Translates Anthropic requests into chat requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from dynamo.api.anthropic.request import (
    AnthropicTool,
    Base64Image,
    Block,
    DocumentBlock,
    FallbackBlock,
    ImageBlock,
    MessageParam,
    MessagesRequest,
    PromptFields,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from dynamo.pipeline.schema import check_schema
from dynamo.pipeline.validate import check_tool_name
from dynamo.protocols.chat import (
    AnyTool,
    ChatRequest,
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    ImagePart,
    ImageUrl,
    Message,
    NamedToolChoice,
    Part,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import ENGINE_FIELDS, JsonSchema, JsonSchemaFormat, ResponseFormat

RequestT = TypeVar("RequestT", bound=PromptFields)
_PREAMBLE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
_CLIENT_TOOLS = ("bash_", "text_editor_", "memory_", "computer_")


def anthropic_to_chat(request: PromptFields) -> ChatRequest:
    """Serves both routes: to count tokens, the same messages and tools are needed, but no limits."""
    if request.mcp_servers is not None:
        raise InvalidRequest.unsupported("mcp_servers", "tools are run by the client")
    chat = ChatRequest(
        model=request.model,
        messages=_messages(request),
        tools=(_tools(request, request.tools) or None) if request.tools else None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=False if request.tool_choice and request.tool_choice.disable_parallel_tool_use else None,
        thinking=_thinking(request),
        reasoning_effort=request.output_config.effort if request.output_config else None,
        response_format=_response_format(request),
        chat_template_kwargs=request.chat_template_kwargs,
        chat_template_args=request.chat_template_args,
    )
    last = chat.messages[-1]
    if last.role == "assistant" and last.content and not last.tool_calls:
        # In Anthropic's API a final assistant message is the beginning of the answer.
        chat.continue_final_message, chat.add_generation_prompt = True, False
    if isinstance(request, MessagesRequest):
        if request.container is not None:
            raise InvalidRequest.unsupported("container", "code is not run on this server")
        if request.compaction is not None:
            raise InvalidRequest.unsupported("compaction", "conversations are not summarized on this server")
        if request.thread is not None:
            # The client sends the whole conversation once it reads this code.
            why = "conversations are not kept on this server; send all messages"
            raise InvalidRequest(f"`thread` is not supported here: {why}.", "thread", "thread_unsupported_request")
        chat.max_tokens = request.max_tokens
        chat.stream = request.stream
        chat.temperature = request.temperature
        chat.top_p = request.top_p
        for name in ENGINE_FIELDS:
            setattr(chat, name, getattr(request, name))
        if request.stop_sequences:
            chat.stop = [
                *([request.stop] if isinstance(request.stop, str) else request.stop or ()),
                *request.stop_sequences,
            ]
    return chat


def without_preamble(request: RequestT) -> RequestT:
    """Without the line that Claude Code writes for Anthropic's billing: at the beginning of its system prompt, or as a
    block of its own. It says nothing to a model, and its version ends in a digest of the user's first words."""
    system = request.system
    if isinstance(system, str):
        return structs.replace(request, system=_PREAMBLE.sub("", system, count=1) or None)
    kept = [TextBlock(_PREAMBLE.sub("", block.text, count=1)) for block in system or ()]
    return structs.replace(request, system=[block for block in kept if block.text] or None)


def hides_thinking(request: MessagesRequest) -> bool:
    """Whether the client wants thinking blocks without their text."""
    return request.thinking is not None and request.thinking.display == "omitted"


def hosted_tools(request: PromptFields) -> list[str]:
    """The types of those tools of a translated request that Anthropic would run; its chat request is without them."""
    return [tool.type for tool in request.tools or () if tool.type not in (None, "custom")]


def _thinking(request: PromptFields) -> Thinking | None:
    if request.thinking is None:
        return None
    if request.thinking.type == "enabled" and request.thinking.budget_tokens is None:
        raise InvalidRequest.missing("thinking.budget_tokens")
    return Thinking(type=request.thinking.type, budget_tokens=request.thinking.budget_tokens)


def _response_format(request: PromptFields) -> ResponseFormat | None:
    form = request.output_config.format if request.output_config else None
    where = "output_config.format"
    if request.output_format is not None:
        if form is not None:
            raise InvalidRequest.bad_value("output_format", "is the older name of `output_config.format`; give one")
        form, where = request.output_format, "output_format"
    if form is None:
        return None
    check_schema(form.schema, f"{where}.schema")
    return JsonSchemaFormat(JsonSchema(name="answer", schema=form.schema))


def _tools(request: PromptFields, tools: list[AnthropicTool]) -> list[AnyTool]:
    may_drop = request.tool_choice is None or request.tool_choice.type in ("auto", "none")
    translated: list[AnyTool] = []
    for index, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            client_side = tool.type.startswith(_CLIENT_TOOLS)
            if may_drop and not client_side:
                continue  # Anthropic's service would run it; without it the model answers as well as it can
            why = f"{tool.type[:64]!r} tools run at Anthropic; only 'custom' is known"
            if client_side:
                why = (
                    f"{tool.type[:64]!r} tools are run by the client, but only Anthropic's models know how to call "
                    "them; offer a tool with an `input_schema`"
                )
            raise InvalidRequest.unsupported(f"tools[{index}].type", why)
        if tool.input_schema is None:
            raise InvalidRequest.missing(f"tools[{index}].input_schema")
        check_schema(tool.input_schema, f"tools[{index}].input_schema")
        definition = FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.input_schema)
        translated.append(Tool(function=definition))
    return translated


def _tool_choice(request: PromptFields) -> ToolChoice | None:
    choice = request.tool_choice
    if choice is None:
        return None
    if choice.type == "none":
        return "none"
    if not request.tools:
        raise InvalidRequest.bad_value("tool_choice", "needs `tools`")
    if choice.type == "auto":
        return "auto"
    if choice.type == "any":
        return "required"
    name = check_tool_name(choice.name, [tool.name for tool in request.tools], "tool_choice.name")
    return NamedToolChoice(function=FunctionName(name))


def _messages(request: PromptFields) -> list[Message]:
    messages = []
    if request.system:
        system = request.system
        text = system if isinstance(system, str) else "\n".join(block.text for block in system)
        messages.append(Message(role="system", content=text))
    for index, message in enumerate(request.messages):
        where = f"messages[{index}].content"
        if isinstance(message.content, str):
            messages.append(Message(role=message.role, content=message.content))
        elif message.role == "assistant":
            messages.append(_assistant(message.content, where))
        else:
            messages += _user(message, message.content, where)
    return messages


def _encode_arguments(arguments: dict[str, Any], where: str) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except RecursionError:
        raise InvalidRequest.bad_value(where, "nested too deep") from None


def _assistant(blocks: list[Block], where: str) -> Message:
    message = Message(role="assistant")
    parts: list[Part] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                parts.append(TextPart(block.text))
            case ThinkingBlock():
                message.reasoning_content = (message.reasoning_content or "") + block.thinking
            case ToolUseBlock():
                arguments = _encode_arguments(block.input, f"{where}[{index}].input")
                calls.append(ToolCall(id=block.id, function=FunctionCall(block.name, arguments)))
            case RedactedThinkingBlock() | FallbackBlock():
                pass
            case _:
                raise _misplaced_error(block, f"{where}[{index}]", "assistant")
    message.tool_calls = calls or None
    # A turn of redacted thinking alone stays in the conversation, as an empty message.
    message.content = parts or (None if calls or message.reasoning_content else "")
    return message


def _user(message: MessageParam, blocks: list[Block], where: str) -> list[Message]:
    """In a chat, each tool result is a message of its own, before the rest of the user's turn."""
    results: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                parts.append(TextPart(block.text))
            case ImageBlock() if message.role == "user":
                parts.append(_image(block))
            case DocumentBlock() | SearchResultBlock() if message.role == "user":
                parts += _document(block)
            case ToolResultBlock() if message.role == "user":
                results.append(_tool_result(block))
            case _:
                raise _misplaced_error(block, f"{where}[{index}]", message.role)
    if parts or not results:
        results.append(Message(role=message.role, content=parts))
    return results


def _tool_result(block: ToolResultBlock) -> Message:
    content = block.content or ""
    if isinstance(content, str):
        parts: list[Part] = [TextPart(content)] if content else []
    else:
        parts = [each for part in content for each in _result_parts(part)]
    if block.is_error:
        parts.insert(0, TextPart("Error: "))
    if all(isinstance(part, TextPart) for part in parts):
        text = "".join(part.text for part in parts if isinstance(part, TextPart))
        return Message(role="tool", tool_call_id=block.tool_use_id, content=text)
    return Message(role="tool", tool_call_id=block.tool_use_id, content=parts)


def _result_parts(block: TextBlock | ImageBlock | DocumentBlock | SearchResultBlock) -> list[Part]:
    match block:
        case TextBlock():
            return [TextPart(block.text)]
        case ImageBlock():
            return [_image(block)]
    return _document(block)


def _document(block: DocumentBlock | SearchResultBlock) -> list[Part]:
    """The text of a document, below its title and context."""
    content: str | Sequence[TextBlock | ImageBlock]
    if isinstance(block, SearchResultBlock):
        about, content = [block.title, block.source], block.content
    else:
        about = [word for word in (block.title, block.context) if word]
        content = block.source.data if isinstance(block.source, TextSource) else block.source.content
    parts: list[Part] = [TextPart("\n".join(about))] if about else []
    if isinstance(content, str):
        return [*parts, TextPart(content)]
    return [*parts, *(TextPart(each.text) if isinstance(each, TextBlock) else _image(each) for each in content)]


def _image(block: ImageBlock) -> ImagePart:
    if isinstance(block.source, Base64Image):
        return ImagePart(ImageUrl(f"data:{block.source.media_type};base64,{block.source.data}"))
    return ImagePart(ImageUrl(block.source.url))


def _misplaced_error(block: Block, where: str, role: str) -> InvalidRequest:
    kind = block.__struct_config__.tag
    return InvalidRequest.bad_value(where, f"`{kind}` has no place in a message of role `{role}`")
