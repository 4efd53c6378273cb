"""POST /v1/responses: a chat in the words of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from dynamo.frontend.answers.answer import json_response, stream_response
from dynamo.frontend.answers.nvext import annotation_events
from dynamo.frontend.answers.responses_stream import ResponsesStream
from dynamo.frontend.answers.sse import EventStream, unescaped
from dynamo.model import Tokenizer
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.logprobs import chat_logprobs
from dynamo.pipeline.responses_to_chat import responses_to_chat, with_responses_names
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException, InvalidRequest
from dynamo.protocols.openai_answers import CompletionUsage
from dynamo.protocols.responses_answers import response_of
from dynamo.serving.conversation import Conversation

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


async def responses(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    asked = frontend.bodies.responses.decode(await frontend.body(request), frontend.ignore_unknown_fields)
    chat = responses_to_chat(asked)
    try:
        validate_chat(chat)
        talk = Conversation(frontend, request, request_id, chat)
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    try:
        try:
            await talk.prepare()
        except InvalidRequest as error:
            raise with_responses_names(error) from None
        id = f"resp_{talk.context.id().replace('-', '')}"
        if not asked.stream:
            answer, _ = await talk.whole(id)
            return json_response(response_of(asked, id, answer), request_id)
        stream = ResponsesStream(asked, id, talk.model.name, talk.created)
        choice = ResponsesChoice(stream, talk.tokenizer, chat.top_logprobs or 0)
        await talk.send([choice])
        before = annotation_events(chat.nvext, talk.context.id(), talk.prepared)
        return await stream_response(request, request_id, choice, before)
    finally:
        await talk.close()


class ResponsesChoice:
    """The one choice of a Responses stream, event by event."""

    def __init__(self, stream: ResponsesStream, tokenizer: Tokenizer | None, top_logprobs: int) -> None:
        self.events = EventStream()
        self.error: DynamoException | None = None
        self._stream = stream
        self._tokenizer = tokenizer
        self._top_logprobs = top_logprobs
        self._tokens: list[TokenLogprob] = []

    def begin(self, so_far: Callable[[], Usage]) -> None:
        pass

    def escaped(self, text: str) -> None:
        self.text(unescaped(text))

    def text(self, text: str) -> None:
        tokens, self._tokens = self._tokens, []
        logprobs = None
        if tokens and self._tokenizer:
            logprobs = chat_logprobs(self._tokenizer, tokens, self._top_logprobs).content
        self.events.write(self._start() + self._stream.text(text, logprobs or ()))

    def reasoning(self, text: str) -> None:
        self.events.write(self._start() + self._stream.reasoning(text))

    def tool_start(self, index: int, id: str, name: str) -> None:
        self.events.write(self._start() + self._stream.tool_start(index, id, name))

    def tool_arguments(self, index: int, fragment: str) -> None:
        self.events.write(self._start() + self._stream.tool_arguments(index, fragment))

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._tokens += tokens

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """A response has no place for them."""

    def finish(self, finish: Finish) -> None:
        usage = CompletionUsage.of(finish.usage)
        self.events.end(self._start() + self._stream.finish(finish.reason, usage))

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.events.end(self._stream.fail(error.message) if self.events.has_begun else b"")

    def _start(self) -> bytes:
        """What comes before the first event; it must be made before that, as events are numbered."""
        return b"" if self.events.has_begun else self._stream.start()
