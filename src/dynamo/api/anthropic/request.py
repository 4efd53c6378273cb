"""Requests of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dynamo.protocols.fields import EngineFields, FilledString, JsonObject, MaxTokens, Name, StopText, TopP


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class Base64Image(Struct, tag_field="type", tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlImage(Struct, tag_field="type", tag="url"):
    url: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    source: Base64Image | UrlImage


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: JsonObject


class TextSource(Struct, tag_field="type", tag="text"):
    data: str


class ContentSource(Struct, tag_field="type", tag="content"):
    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Struct, tag_field="type", tag="document", omit_defaults=True):
    source: TextSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]


class ToolResultBlock(Struct, tag_field="type", tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking", omit_defaults=True):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """Encrypted by Anthropic's service, so nothing of it is passed to the model."""

    data: str


class FallbackBlock(Struct, tag_field="type", tag="fallback"):
    """Says where another model took over; nothing of it is passed to the model."""


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | FallbackBlock
)


class MessageParam(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(Struct, kw_only=True, omit_defaults=True):
    name: Name
    type: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None


class ToolChoiceParam(Struct, kw_only=True, omit_defaults=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(Struct, kw_only=True, omit_defaults=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonOutputFormat(Struct, tag_field="type", tag="json_schema"):
    schema: JsonObject


class OutputConfig(Struct, kw_only=True, omit_defaults=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutputFormat | None = None


class PromptFields(EngineFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields that determine the prompt, and so its number of tokens."""

    model: FilledString
    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[AnthropicTool], Meta(max_length=1536)] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutputFormat | None = None
    """The older place of `output_config.format`."""

    chat_template_kwargs: JsonObject | None = None
    chat_template_args: JsonObject | None = None

    cache_control: JsonObject | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    context_management: JsonObject | None = None
    """What to drop from a long history. Ignored: the model always reads the whole history."""

    mcp_servers: Any = None
    compaction: Any = None


class CountTokensRequest(PromptFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class MessagesRequest(PromptFields, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    max_tokens: MaxTokens
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=32)] | None = None

    metadata: JsonObject | None = None
    inference_geo: str | None = None
    diagnostics: JsonObject | None = None

    fallbacks: Any = None
    """Models to ask when this one rejects for reasons of policy, which none does here: ignored."""
    fallback_credit_token: Any = None

    container: Any = None
    thread: Any = None
