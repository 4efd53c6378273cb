"""POST /tokenize and /detokenize, and GET /version, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from dynamo import __version__
from dynamo.api.answers.http import json_response
from dynamo.api.host import Host
from dynamo.api.route import HttpCall
from dynamo.pipeline.preprocess import Preprocessor, reject_characters
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.chat import AnyTool, ChatRequest, Message
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.fields import FilledString, JsonObject, TokenId


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Either `prompt` or `messages`, which are rendered by the chat template first."""

    model: FilledString | None = None
    """The model; it may be left out where a single model is served."""
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


async def tokenize(host: Host, call: HttpCall[TokenizeRequest]) -> web.StreamResponse:
    asked = call.body
    preprocessor = _preprocessor(host, asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest.bad_value("prompt", "give either `prompt` or `messages`")
    if asked.messages is not None:
        chat = ChatRequest(
            model=preprocessor.card.name,
            messages=asked.messages,
            tools=asked.tools,
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=asked.continue_final_message,
            chat_template_kwargs=asked.chat_template_kwargs,
        )
        validate_chat(chat)
        text, special = preprocessor.render(chat), bool(asked.add_special_tokens)
    else:
        text, special = asked.prompt or "", asked.add_special_tokens is not False
    reject_characters(text, "prompt" if asked.messages is None else "messages")
    tokenizer = preprocessor.model.tokenizer
    ids = await tokenizer.encode_async(text, special)
    names = [tokenizer.tokens.get(id, "") for id in ids] if asked.return_token_strs else None
    limit = preprocessor.model.context_length
    return json_response(TokenizeAnswer(count=len(ids), max_model_len=limit, tokens=ids, token_strs=names))


async def detokenize(host: Host, call: HttpCall[DetokenizeRequest]) -> web.StreamResponse:
    preprocessor = _preprocessor(host, call.body.model)
    preprocessor.check_ids(call.body.tokens, "tokens")
    text = preprocessor.model.tokenizer.decode(call.body.tokens, skip_special_tokens=False)
    return json_response(DetokenizeAnswer(prompt=text))


async def version(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response({"version": __version__})


def _preprocessor(host: Host, name: str | None) -> Preprocessor:
    if name is None:
        served = host.models.served()
        if len(served) != 1:
            raise InvalidRequest.missing("model")
        name = served[0].name
    return host.models.get(name).tokenizing()
