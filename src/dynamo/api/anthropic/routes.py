"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, served as a chat."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.answers.http import json_response, stream_response
from dynamo.api.answers.numbered import events_of
from dynamo.api.anthropic.answers import ANTHROPIC, AnthropicMessage, TokenCount, message_of
from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.anthropic.stream import AnthropicStream, MessagesWriter, stop_sequence
from dynamo.api.anthropic.to_chat import anthropic_to_chat, hides_thinking, hosted_tools, without_preamble
from dynamo.api.host import Host
from dynamo.api.route import Api, HttpCall, inference
from dynamo.api.stream_names import open_stream
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.card import ModelType
from dynamo.serving.conversation import Conversation
from dynamo.serving.request import require_type


async def messages(host: Host, call: HttpCall[MessagesRequest]) -> web.StreamResponse:
    body = call.body
    chat = anthropic_to_chat(without_preamble(body) if host.strips_preamble else body)
    call.warn("tools that run at Anthropic", hosted_tools(body))
    validate_chat(chat)
    model = await host.models.arrive(chat.model)
    context, named = await open_stream(host, call, chat)
    conversation = Conversation(model, chat, context, call.record, stream=named)
    try:
        await conversation.prepare()
        id = f"msg_{conversation.context.id().replace('-', '')}"
        if not body.stream:
            collected = await conversation.collect()
            sequence = stop_sequence(collected.stop_reason)
            return json_response(message_of(conversation.completion(collected), id, sequence, hides_thinking(body)))
        stream = AnthropicStream(id, conversation.model.name, conversation.prompt_tokens, hides_thinking(body))
        writer = MessagesWriter(stream, call.request_id, events_of(conversation))
        await conversation.send([writer])
        return await stream_response(call, writer, conversation)
    finally:
        await conversation.close()


async def count_tokens(host: Host, call: HttpCall[CountTokensRequest]) -> web.StreamResponse:
    """The exact count: the prompt is rendered and tokenized as for an answer."""
    chat = anthropic_to_chat(without_preamble(call.body) if host.strips_preamble else call.body)
    validate_chat(chat)
    model = host.models.get(chat.model)
    require_type(model, ModelType.Chat)
    return json_response(TokenCount(input_tokens=await model.tokenizing().count_tokens(chat)))


ANTHROPIC_API = Api(
    (
        inference(
            "/v1/messages", messages, MessagesRequest, AnthropicMessage,
            "Continue a conversation, as Anthropic's Messages",
            endpoint="anthropic_messages", limits=("max_tokens",), streams=True, dialect=ANTHROPIC,
        ),
        inference(
            "/v1/messages/count_tokens", count_tokens, CountTokensRequest, TokenCount,
            "Count the tokens of a prompt", dialect=ANTHROPIC,
        ),
    ),
    prefix="/v1/messages",
    dialect=ANTHROPIC,
)  # fmt: skip
