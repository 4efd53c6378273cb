"""Responses of the Anthropic routes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dynamo.api.answers.errors import Dialect
from dynamo.protocols.answers import ChatCompletion, CompletionUsage
from dynamo.protocols.errors import ContextLengthExceeded, DynamoException, InvalidRequest

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextAnswer(Struct, kw_only=True, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(Struct, kw_only=True, tag_field="type", tag="thinking"):
    """The signature is empty, since nothing is signed here; clients need the field to send the block back."""

    thinking: str
    signature: str = ""


class ToolUseAnswer(Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextAnswer | ThinkingAnswer | ToolUseAnswer


class AnthropicUsage(Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0

    @staticmethod
    def of(usage: CompletionUsage) -> AnthropicUsage:
        """Unlike OpenAI, Anthropic does not count cached tokens among the input tokens."""
        return AnthropicUsage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_input_tokens=usage.cached_tokens,
        )


class AnthropicMessage(Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None = None
    usage: AnthropicUsage


class TokenCount(Struct, kw_only=True):
    input_tokens: int


class AnthropicModel(Struct, kw_only=True):
    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | UnsetType = UNSET


class AnthropicModelList(Struct, kw_only=True):
    data: list[AnthropicModel]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None

    @staticmethod
    def of(models: list[AnthropicModel]) -> AnthropicModelList:
        return AnthropicModelList(
            data=models, first_id=models[0].id if models else None, last_id=models[-1].id if models else None
        )


class AnthropicErrorDetail(Struct, kw_only=True):
    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET
    """`error_code`: the machine-readable reason, by which the official client recovers from some refusals."""


class AnthropicError(Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: AnthropicErrorDetail
    request_id: str | None = None

    @staticmethod
    def of(error: DynamoException, request_id: str | None = None) -> AnthropicError:
        message, code = error.public_message, None
        if isinstance(error, ContextLengthExceeded) and error.limit:
            message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
        if isinstance(error, InvalidRequest):
            code = error.code
        details = {"error_code": code} if code else UNSET
        detail = AnthropicErrorDetail(type=_error_type(error.status), message=message, details=details)
        return AnthropicError(error=detail, request_id=request_id)


def _error_type(status: int) -> str:
    """Anthropic's error type for an HTTP status."""
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 404:
            return "not_found_error"
        case 413:
            return "request_too_large"
        case 429:
            return "rate_limit_error"
        case 503 | 529:
            return "overloaded_error"
        case 504:
            return "timeout_error"
    return "invalid_request_error" if 400 <= status < 500 else "api_error"


def stop_reason(finish_reason: str, stop_sequence: str | None = None) -> StopReason:
    match finish_reason:
        case "length":
            return "max_tokens"
        case "tool_calls":
            return "tool_use"
        case "content_filter":
            return "refusal"
    return "end_turn" if stop_sequence is None else "stop_sequence"


def message_of(
    chat: ChatCompletion, message_id: str, stop_sequence: str | None = None, hide_thinking: bool = False
) -> AnthropicMessage:
    """Convert the answer to the chat request that an Anthropic request was translated to."""
    choice = chat.choices[0]
    answer = choice.message
    content: list[ContentBlock] = []
    if answer.reasoning_content:
        content.append(ThinkingAnswer(thinking="" if hide_thinking else answer.reasoning_content))
    if answer.content:
        content.append(TextAnswer(text=answer.content))
    content += [
        ToolUseAnswer(id=call.id, name=call.name, input=_parsed_arguments(call.arguments))
        for call in answer.tool_calls or ()
    ]
    reason = stop_reason(choice.finish_reason, stop_sequence)
    return AnthropicMessage(
        id=message_id,
        model=chat.model,
        content=content,
        stop_reason=reason,
        stop_sequence=stop_sequence if reason == "stop_sequence" else None,
        usage=AnthropicUsage.of(chat.usage),
    )


def _parsed_arguments(arguments: str) -> dict[str, Any]:
    """Empty for arguments cut off by the token limit, which do not parse; `stop_reason` tells the client so."""
    try:
        parsed = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


ANTHROPIC = Dialect(
    AnthropicError,
    lambda error, request_id, status: AnthropicError.of(error, request_id),
    request_id="request-id",
    client="anthropic-version",
)
