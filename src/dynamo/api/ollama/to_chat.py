"""Translates Ollama's requests into chat requests."""

from __future__ import annotations

import msgspec

from dynamo.api.ollama.messages import (
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from dynamo.pipeline.schema import check_value
from dynamo.protocols.chat import (
    ChatRequest,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    Part,
    TextPart,
    ToolCall,
)
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import JsonObjectFormat, JsonSchema, JsonSchemaFormat, NvExt, ResponseFormat


def ollama_to_chat(request: OllamaChatRequest | OllamaGenerateRequest, model: str) -> ChatRequest:
    options = request.options or OllamaOptions()
    chat = ChatRequest(
        model=model,
        messages=_messages(request) if isinstance(request, OllamaChatRequest) else _turns(request),
        tools=[*request.tools] if isinstance(request, OllamaChatRequest) and request.tools else None,
        stream=request.stream or None,
        max_tokens=options.num_predict if options.num_predict and options.num_predict > 0 else None,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        stop=[options.stop] if isinstance(options.stop, str) else [*(options.stop or ())] or None,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        thinking=request.think if isinstance(request.think, bool) else None,
        reasoning_effort=request.think if isinstance(request.think, str) else None,
        response_format=_response_format(request),
    )
    if isinstance(request, OllamaGenerateRequest) and request.raw:
        chat.nvext = NvExt(use_raw_prompt=True)
    return chat


def _response_format(request: OllamaFields) -> ResponseFormat | None:
    match request.format:
        case None | "":
            return None
        case "json":
            return JsonObjectFormat()
        case str():
            raise InvalidRequest.bad_value("format", "must be 'json' or a JSON schema")
        case schema:
            return JsonSchemaFormat(JsonSchema(name="answer", schema=schema))


def _turns(request: OllamaGenerateRequest) -> list[Message]:
    if request.suffix:
        raise InvalidRequest.unsupported("suffix", "text can only be continued, not filled in")
    system = [Message(role="system", content=request.system)] if request.system and not request.raw else []
    return [*system, Message(role="user", content=_content(request.prompt, request.images))]


def _messages(request: OllamaChatRequest) -> list[Message]:
    """Ollama's calls may have no ids: a tool's message then answers the oldest call that is still open."""
    messages: list[Message] = []
    open_calls: list[str] = []
    for index, message in enumerate(request.messages):
        calls = _calls(message, f"messages[{index}].tool_calls", len(messages))
        open_calls += [call.id for call in calls]
        answered = message.tool_call_id
        if message.role == "tool" and answered is None:
            answered = open_calls.pop(0) if open_calls else f"call_{index}"
        elif answered in open_calls:
            open_calls.remove(answered)
        messages.append(
            Message(
                role=message.role,
                content=_content(message.content, message.images),
                reasoning_content=message.thinking,
                tool_calls=calls or None,
                tool_call_id=answered,
            )
        )
    return messages


def _calls(message: OllamaMessage, where: str, turn: int) -> list[ToolCall]:
    calls = []
    for index, call in enumerate(message.tool_calls or ()):
        check_value(call.function.arguments, f"{where}[{index}].function.arguments")
        arguments = msgspec.json.encode(call.function.arguments).decode()
        id = call.id or f"call_{turn}_{index}"
        calls.append(ToolCall(id=id, function=FunctionCall(call.function.name, arguments)))
    return calls


def _content(text: str, images: list[str] | None) -> str | list[Part]:
    if not images:
        return text
    return [TextPart(text), *(ImagePart(ImageUrl(f"data:image/png;base64,{image}")) for image in images)]
