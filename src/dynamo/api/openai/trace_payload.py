"""What chat requests said and how they were answered, for request traces that are asked to keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from dynamo.pipeline.choice import ChoiceSink, Finish, TokenLogprob
from dynamo.protocols.errors import DynamoException
from dynamo.serving.collect import CollectedResponse
from dynamo.serving.conversation import Conversation

ENDPOINT = "openai.chat_completion"


class TracedPayload(Struct, kw_only=True, omit_defaults=True):
    request_id: str
    endpoint: str = msgspec.field(default_factory=lambda: ENDPOINT)
    model: str
    request: Raw | None = None
    response: Raw | None = None
    """None of a request that failed or was cancelled."""
    http_request_headers: dict[str, str] | None = None
    payload_complete: bool
    payload_drop_reason: str | None = None


class CapturedPayload:
    """One request with its answer."""

    __slots__ = ("_body", "_collected", "_conversation", "_headers", "_incomplete", "_model", "_response")

    def __init__(self, model: str, body: bytes | bytearray, headers: dict[str, str] | None) -> None:
        self._model = model
        self._body = body
        self._headers = headers
        self._response: bytes | None = None
        self._collected: CollectedResponse | None = None
        self._conversation: Conversation | None = None
        self._incomplete: str | None = None

    @property
    def size(self) -> int:
        """The bytes that a row would keep."""
        return len(self._body) + len(self._response or b"")

    def answered(self, answer: object) -> None:
        self._response = msgspec.json.encode(answer)

    def relayed(self) -> None:
        """The answer is a stream that a worker wrote itself, of which nothing is kept."""
        self._incomplete = "the response is a stream of the worker's own chunks"

    def collecting(self, conversation: Conversation, writers: Sequence[ChoiceSink]) -> list[ChoiceSink]:
        """Sinks that pass everything on to the writers of a stream, and keep it."""
        self._conversation = conversation
        self._collected = CollectedResponse(conversation.n, conversation.n, custom_tools=conversation.custom_tools)
        return [BothSinks(writer, kept) for writer, kept in zip(writers, self._collected.choices, strict=True)]

    async def collected(self) -> None:
        """Keep the collected answer: the stream has ended without an error."""
        if self._collected is not None and self._conversation is not None:
            await self._collected.done()
            self.answered(self._conversation.completion(self._collected))

    def to_row(self, request_id: str) -> TracedPayload:
        return TracedPayload(
            request_id=request_id,
            model=self._model,
            request=_one_line(self._body),
            response=None if self._response is None else Raw(self._response),
            http_request_headers=self._headers,
            payload_complete=self._incomplete is None,
            payload_drop_reason=self._incomplete,
        )

    def to_marker(self, request_id: str, limit: int) -> TracedPayload:
        """The row in place of one that is larger than `limit` bytes."""
        return TracedPayload(
            request_id=request_id,
            model=self._model,
            http_request_headers=self._headers,
            payload_complete=False,
            payload_drop_reason=f"the row is larger than {limit} bytes",
        )


class PayloadCapture:
    def __init__(self, header_names: Sequence[str] = ()) -> None:
        """Headers of these names are kept too."""
        self._header_names = sorted({name.lower() for name in header_names})

    def begin(self, model: str, body: bytes | bytearray, headers: Mapping[str, str]) -> CapturedPayload:
        kept = {name: headers[name] for name in self._header_names if name in headers}
        return CapturedPayload(model, body, kept or None)


class BothSinks:
    """Passes one choice on to two sinks."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: ChoiceSink, second: ChoiceSink) -> None:
        self._first = first
        self._second = second

    def escaped(self, text: str) -> None:
        self._first.escaped(text)
        self._second.escaped(text)

    def text(self, text: str) -> None:
        self._first.text(text)
        self._second.text(text)

    def reasoning(self, text: str) -> None:
        self._first.reasoning(text)
        self._second.reasoning(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        self._first.tool_start(index, id, name)
        self._second.tool_start(index, id, name)

    def tool_arguments(self, index: int, fragment: str) -> None:
        self._first.tool_arguments(index, fragment)
        self._second.tool_arguments(index, fragment)

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._first.logprobs(tokens)
        self._second.logprobs(tokens)

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._first.prompt_logprobs(tokens)
        self._second.prompt_logprobs(tokens)

    def finish(self, finish: Finish) -> None:
        # The first of them ends the stream: by then the other has all of it.
        self._second.finish(finish)
        self._first.finish(finish)

    def fail(self, error: DynamoException) -> None:
        self._second.fail(error)
        self._first.fail(error)


def _one_line(body: bytes | bytearray) -> Raw:
    """JSON as a client wrote it, without line breaks; bytes that are no text are replaced."""
    text: Any = bytes(body).decode(errors="replace").encode()
    return Raw(msgspec.json.format(text, indent=-1))
