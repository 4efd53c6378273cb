"""Responses of the OpenAI routes for `stream: false`. Streams write their chunks from byte templates instead."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from dynamo.protocols.chat import CustomCall, FunctionCall
from dynamo.protocols.engine import Usage

ChatFinish = Literal["stop", "length", "tool_calls", "content_filter"]
TextFinish = Literal["stop", "length", "content_filter"]


class CompletionUsage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, Any] | UnsetType = UNSET
    completion_tokens_details: dict[str, Any] | UnsetType = UNSET

    @staticmethod
    def of(usage: Usage) -> CompletionUsage:
        return CompletionUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=usage.prompt_tokens_details or UNSET,
            completion_tokens_details=usage.completion_tokens_details or UNSET,
        )

    @property
    def cached_tokens(self) -> int:
        return int((self.prompt_tokens_details or {}).get("cached_tokens") or 0)

    @property
    def reasoning_tokens(self) -> int:
        return int((self.completion_tokens_details or {}).get("reasoning_tokens") or 0)


class TokenAlternative(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None = None


class ChatLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TokenAlternative] = []


class ChatLogprobs(Struct, kw_only=True):
    content: list[ChatLogprob] | None
    refusal: None = None


class FunctionToolCall(Struct, kw_only=True, tag_field="type", tag="function"):
    id: str
    function: FunctionCall

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def arguments(self) -> str:
        return self.function.arguments

    def add(self, fragment: str) -> None:
        self.function.arguments += fragment


class CustomToolCall(Struct, kw_only=True, tag_field="type", tag="custom"):
    """Its arguments are text."""

    id: str
    custom: CustomCall

    @property
    def name(self) -> str:
        return self.custom.name

    @property
    def arguments(self) -> str:
        return self.custom.input

    def add(self, fragment: str) -> None:
        self.custom.input += fragment


AnswerToolCall = FunctionToolCall | CustomToolCall


class AnswerMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinish
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_token_ids: list[int] | UnsetType = UNSET
    nvext: dict[str, Any] | UnsetType = UNSET


class TextLogprobs(Struct, kw_only=True):
    """`text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: TextFinish
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextCompletion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage
    nvext: dict[str, Any] | UnsetType = UNSET


class Model(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int | UnsetType = UNSET


class ModelReadiness(Struct, kw_only=True):
    id: str
    object: Literal["model.readiness"] = "model.readiness"
    ready: bool
    reason: str | UnsetType = UNSET


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


class ErrorDetail(Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(Struct, kw_only=True):
    error: ErrorDetail


class Page(Struct, kw_only=True):
    """A part of a list; `last_id` is the `after` of the next one."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
