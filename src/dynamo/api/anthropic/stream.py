"""The events of a streamed /v1/messages answer, as the bytes to send."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dynamo.api.answers.sse import EventStream
from dynamo.api.anthropic.answers import (
    AnthropicError,
    AnthropicMessage,
    AnthropicUsage,
    TextAnswer,
    ThinkingAnswer,
    ToolUseAnswer,
    stop_reason,
)
from dynamo.model import json_unescaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.protocols.answers import CompletionUsage
from dynamo.protocols.errors import DynamoException

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_encode = msgspec.json.encode


class AnthropicStream:
    """Each method returns the events for one more piece of output, given in order.

    One block is open at a time: output of another kind ends it.
    """

    def __init__(self, message_id: str, model: str, input_tokens: int, hide_thinking: bool = False) -> None:
        self._message = AnthropicMessage(
            id=message_id,
            model=model,
            content=[],
            stop_reason=None,
            usage=AnthropicUsage(input_tokens=input_tokens, output_tokens=0),
        )
        self._hide_thinking = hide_thinking
        self._open: Literal["text", "thinking", "tool"] | None = None
        self._index = -1
        self._tool = -1
        self._delta_head = b""

    def start(self) -> bytes:
        return _event("message_start", message=self._message)

    def text(self, delta: str) -> bytes:
        begin = b""
        if self._open != "text":
            begin = self._begin("text", TextAnswer(text=""), b'"text_delta","text":')
        return begin + self._delta(delta)

    def reasoning(self, delta: str) -> bytes:
        begin = b""
        if self._open != "thinking":
            begin = self._begin("thinking", ThinkingAnswer(thinking=""), b'"thinking_delta","thinking":')
        return begin if self._hide_thinking else begin + self._delta(delta)

    def tool_start(self, index: int, call_id: str, name: str) -> bytes:
        self._tool = index
        block = ToolUseAnswer(id=call_id, name=name, input={})
        return self._begin("tool", block, b'"input_json_delta","partial_json":')

    def tool_arguments(self, index: int, delta: str) -> bytes:
        if self._open != "tool" or index != self._tool:
            raise ValueError(f"arguments for call {index}, which is not open")
        return self._delta(delta)

    def finish(self, reason: str, usage: CompletionUsage, stop_sequence: str | None = None) -> bytes:
        """`reason` is a chat finish reason; `stop_sequence` the stop string that ended the answer, if one did."""
        word = stop_reason(reason, stop_sequence)
        delta = {"stop_reason": word, "stop_sequence": stop_sequence if word == "stop_sequence" else None}
        last = _event("message_delta", delta=delta, usage=AnthropicUsage.of(usage))
        return self._end() + last + _event("message_stop")

    def fail(self, error: DynamoException, request_id: str | None = None) -> bytes:
        """Ends the stream: after an error no other event may come."""
        return b"event: error\ndata: %b\n\n" % _encode(AnthropicError.of(error, request_id))

    def _begin(
        self,
        kind: Literal["text", "thinking", "tool"],
        block: TextAnswer | ThinkingAnswer | ToolUseAnswer,
        delta: bytes,
    ) -> bytes:
        ended = self._end()
        self._open = kind
        self._index += 1
        self._delta_head = self._delta_head_of(delta)
        return ended + _event("content_block_start", index=self._index, content_block=block)

    def _delta_head_of(self, kind: bytes) -> bytes:
        return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b' % (
            self._index,
            kind,
        )

    def _delta(self, delta: str) -> bytes:
        return b"%b%b}}\n\n" % (self._delta_head, _encode(delta))

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        # Clients keep a thinking block for the next turn only if it was signed.
        signed = self._delta_head_of(b'"signature_delta","signature":""}}\n\n') if self._open == "thinking" else b""
        self._open = None
        return signed + _event("content_block_stop", index=self._index)


class MessagesWriter:
    """Writes the one choice of a Messages stream."""

    def __init__(self, stream: AnthropicStream, request_id: str, events: EventStream) -> None:
        self.events = events
        self._started = False
        self.error: DynamoException | None = None
        self._stream = stream
        self._request_id = request_id

    def escaped(self, text: str) -> None:
        self.text(json_unescaped(text))

    def text(self, text: str) -> None:
        self.events.write(self._start() + self._stream.text(text))

    def reasoning(self, text: str) -> None:
        event = self._start() + self._stream.reasoning(text)
        if event:  # empty for reasoning that the client does not want
            self.events.write(event)

    def tool_start(self, index: int, id: str, name: str) -> None:
        self.events.write(self._start() + self._stream.tool_start(index, id, name))

    def tool_arguments(self, index: int, fragment: str) -> None:
        self.events.write(self._start() + self._stream.tool_arguments(index, fragment))

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        """Anthropic's API has no field for them."""

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """This API has no field for them."""

    def finish(self, finish: Finish) -> None:
        usage = CompletionUsage.of(finish.usage)
        self.events.end(self._start() + self._stream.finish(finish.reason, usage, stop_sequence(finish.stop_reason)))

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.events.fail(self._stream.fail(error, self._request_id) if self.events.has_begun else b"")

    def _start(self) -> bytes:
        """The event that opens the stream, if it is not open yet."""
        if self._started:
            return b""
        self._started = True
        return self._stream.start()


def stop_sequence(reason: str | int | None) -> str | None:
    """Anthropic names the stop string that ended an answer, but no stop token."""
    return reason if isinstance(reason, str) else None


def _event(event: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), _encode({"type": event, **fields}))
