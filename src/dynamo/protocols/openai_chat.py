"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dynamo.protocols.openai_fields import GenerationFields, JsonObject, MaxTokens, Name, ReasoningEffort


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ImageUrl(Struct, omit_defaults=True):
    url: str
    detail: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class InputAudio(Struct):
    data: str
    format: str


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


class FileSource(Struct, omit_defaults=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(Struct, tag_field="type", tag="file"):
    file: FileSource


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str


Part = TextPart | ImagePart | AudioPart | FilePart | RefusalPart


class FunctionCall(Struct):
    name: str
    arguments: str = ""


class ToolCall(Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Struct, kw_only=True, omit_defaults=True):
    """One turn. Unknown fields are dropped, because clients send back whole answers with fields of other servers."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: JsonObject | None = None


class FunctionDefinition(Struct, kw_only=True, omit_defaults=True):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Struct):
    name: str


class NamedToolChoice(Struct, kw_only=True, tag_field="type", tag="function"):
    function: FunctionName


class AllowedTool(Struct, kw_only=True):
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class AllowedToolChoice(Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Only these of the request's tools may be called."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice


class Thinking(Struct, kw_only=True, omit_defaults=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class ChatRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    tools: Annotated[list[Tool], Meta(max_length=1536)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    reasoning_effort: ReasoningEffort | None = None
    thinking: bool | Thinking | None = None
    chat_template_kwargs: JsonObject | None = None
    chat_template_args: JsonObject | None = None
    documents: list[JsonObject] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    prediction: JsonObject | None = None
    """A guess at the answer that could only speed it up: ignored."""

    modalities: list[str] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    audio: Any = None
    moderation: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    chat_template: Any = None
