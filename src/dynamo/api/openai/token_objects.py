"""Requests and answers of POST /tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dynamo.protocols.chat import AnyTool, Message
from dynamo.protocols.fields import FilledString, JsonObject, TokenId


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Either `prompt` or `messages`, which are rendered by the chat template first."""

    model: FilledString | None = None
    """May be left out where a single model is served."""
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[AnyTool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(Struct, kw_only=True):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    model: FilledString | None = None
    tokens: list[TokenId]


class DetokenizeAnswer(Struct, kw_only=True):
    prompt: str
