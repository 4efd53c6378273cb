"""POST /v1/messages and /v1/messages/count_tokens: a chat in the words of Anthropic's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from dynamo.frontend.answers.answer import json_response, stream_response
from dynamo.frontend.answers.anthropic_stream import AnthropicStream
from dynamo.frontend.answers.nvext import annotation_events
from dynamo.frontend.answers.sse import EventStream, unescaped
from dynamo.pipeline.anthropic_to_chat import anthropic_to_chat, hides_thinking
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.anthropic_answers import TokenCount, message_of
from dynamo.protocols.card import ModelType
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException, InvalidRequest
from dynamo.protocols.openai_answers import CompletionUsage
from dynamo.serving.conversation import Conversation

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


async def messages(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    asked = frontend.bodies.messages.decode(await frontend.body(request), frontend.ignore_unknown_fields)
    chat = anthropic_to_chat(asked)
    validate_chat(chat)
    talk = Conversation(frontend, request, request_id, chat)
    try:
        await talk.prepare()
        id = f"msg_{talk.context.id().replace('-', '')}"
        if not asked.stream:
            answer, whole = await talk.whole(id)
            told = message_of(answer, id, _sequence(whole.stop_reason), hides_thinking(asked))
            return json_response(told, request_id)
        stream = AnthropicStream(id, talk.model.name, talk.prompt_tokens, hides_thinking(asked))
        choice = MessagesChoice(stream, request_id)
        await talk.send([choice])
        before = annotation_events(chat.nvext, talk.context.id(), talk.prepared)
        return await stream_response(request, request_id, choice, before)
    finally:
        await talk.close()


async def count_tokens(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    """Exact: the prompt is rendered and tokenised as for an answer."""
    asked = frontend.bodies.count_tokens.decode(await frontend.body(request), frontend.ignore_unknown_fields)
    chat = anthropic_to_chat(asked)
    validate_chat(chat)
    model = frontend.model(asked.model, ModelType.Chat)
    if model.preprocessor is None:
        raise InvalidRequest(
            f"The model '{asked.model}' reads text: its tokens are known to its worker only.", "model", "no_tokenizer"
        )
    return json_response(TokenCount(input_tokens=await model.preprocessor.count_tokens(chat)), request_id)


def _sequence(stop_reason: str | int | None) -> str | None:
    """Anthropic names the stop string that ended an answer, and nothing else that did."""
    return stop_reason if isinstance(stop_reason, str) else None


class MessagesChoice:
    """The one choice of a Messages stream, event by event."""

    def __init__(self, stream: AnthropicStream, request_id: str) -> None:
        self.events = EventStream()
        self.error: DynamoException | None = None
        self._stream = stream
        self._request_id = request_id

    def begin(self, so_far: Callable[[], Usage]) -> None:
        pass

    def escaped(self, text: str) -> None:
        self.text(unescaped(text))

    def text(self, text: str) -> None:
        self.events.write(self._start() + self._stream.text(text))

    def reasoning(self, text: str) -> None:
        event = self._start() + self._stream.reasoning(text)
        if event:  # nothing is said of thoughts the client does not want to read
            self.events.write(event)

    def tool_start(self, index: int, id: str, name: str) -> None:
        self.events.write(self._start() + self._stream.tool_start(index, id, name))

    def tool_arguments(self, index: int, fragment: str) -> None:
        self.events.write(self._start() + self._stream.tool_arguments(index, fragment))

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        """Anthropic's API has no place for them."""

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """Nor for these."""

    def finish(self, finish: Finish) -> None:
        usage = CompletionUsage.of(finish.usage)
        sequence = _sequence(finish.stop_reason)
        self.events.end(self._start() + self._stream.finish(finish.reason, usage, sequence))

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.events.end(self._stream.fail(error, self._request_id) if self.events.has_begun else b"")

    def _start(self) -> bytes:
        """What comes before the first event."""
        return b"" if self.events.has_begun else self._stream.start()
