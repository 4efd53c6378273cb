"""The request of POST /v1/responses.

An input item may omit its type, so one struct with optional fields stands for all types. The translation to a chat
request checks each item and rejects those that only OpenAI's own service could resolve.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dynamo.protocols.openai_fields import (
    EngineFields,
    FilledString,
    JsonObject,
    JsonObjectFormat,
    MaxTokens,
    Name,
    ReasoningEffort,
    Temperature,
    TextFormat,
    TopP,
)


class InputPart(Struct, kw_only=True, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None


class InputItem(Struct, kw_only=True, omit_defaults=True):
    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None


class ResponsesTool(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ResponsesToolChoice(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ResponsesTool] | None = None


class ReasoningOptions(Struct, kw_only=True, omit_defaults=True):
    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None


class FlatJsonSchemaFormat(Struct, tag_field="type", tag="json_schema", omit_defaults=True):
    """Unlike in a chat request, the schema is not nested in a `json_schema` field."""

    name: Name
    schema: JsonObject
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True, omit_defaults=True):
    format: TextFormat | JsonObjectFormat | FlatJsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    include_obfuscation: bool | None = None


class ResponsesRequest(EngineFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    model: FilledString
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None

    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponsesTool], Meta(max_length=1536)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None

    chat_template_kwargs: JsonObject | None = None
    chat_template_args: JsonObject | None = None

    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = None
    """Limits calls of OpenAI's built-in tools, which do not exist here: echoed and otherwise ignored."""

    background: bool | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    conversation: Any = None
    context_management: Any = None
    moderation: Any = None
