"""The events of a streamed /v1/responses answer, as the bytes to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from dynamo.api.answers.sse import EventStream
from dynamo.api.responses.answers import (
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningContent,
    ReasoningItem,
    ResponseObject,
    SummaryText,
)
from dynamo.api.responses.calls import (
    CallItems,
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    LocalShellCallItem,
    PatchCallItem,
    ShellCallItem,
    end_call,
    item_id,
)
from dynamo.api.responses.event_log import EventLog
from dynamo.api.responses.mcp_items import McpApprovalRequestItem
from dynamo.api.responses.mcp_turn import McpTurn
from dynamo.api.responses.request import ResponsesRequest
from dynamo.model import Tokenizer, json_unescaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.logprobs import chat_logprobs
from dynamo.protocols.answers import ChatLogprob, CompletionUsage
from dynamo.protocols.errors import DynamoException

_encode = msgspec.json.encode
_CallWithStatus = FunctionCallItem | CustomCallItem | LocalShellCallItem | ShellCallItem | PatchCallItem
_CALL_DELTAS: dict[type[OutputItem], str] = {
    FunctionCallItem: "response.function_call_arguments.delta",
    CustomCallItem: "response.custom_tool_call_input.delta",
}
"""The events with the pieces of a call, by the type of its item; a call of another type comes as a whole."""


class ResponsesStream:
    """Each method returns the events for one more piece of output, given in order.

    One item is open at a time: output of another kind ends it.
    """

    def __init__(
        self, request: ResponsesRequest, response_id: str, model: str, created: int, mcp: McpTurn | None = None
    ) -> None:
        self._response = ResponseObject.in_progress(request, response_id, model, created)
        self._call_items = CallItems(request, response_id, mcp.functions if mcp else None)
        self._begins_with = mcp.begins_with if mcp else ()
        self._summarizes = request.wants_summary
        self._sequence = 0
        self._open: Literal["text", "reasoning", "tool"] | None = None
        self._tool = -1
        self._pieces: list[str] = []
        self._logprobs: list[ChatLogprob] = []
        self._delta_head = b""
        self._place: dict[str, Any] = {}

    def start(self) -> bytes:
        begun = self._whole("response.created") + self._whole("response.in_progress")
        for item in self._begins_with:
            index = len(self._response.output)
            self._response.output.append(item)
            begun += self._event("response.output_item.added", output_index=index, item=item)
            begun += self._event("response.output_item.done", output_index=index, item=item)
        return begun

    def text(self, delta: str, logprobs: Sequence[ChatLogprob] = ()) -> bytes:
        begin = b"" if self._open == "text" else self._begin_text()
        self._pieces.append(delta)
        if not logprobs:
            return begin + self._delta(b"[],", delta)
        self._logprobs += logprobs
        return begin + self._delta(_encode(logprobs) + b",", delta)

    def reasoning(self, delta: str) -> bytes:
        begin = b"" if self._open == "reasoning" else self._begin_reasoning()
        self._pieces.append(delta)
        return begin + self._delta(b"", delta)

    def tool_start(self, index: int, call_id: str, name: str) -> bytes:
        ended = self._end_item()
        self._open, self._tool = "tool", index
        item = self._call_items.begin(len(self._response.output), call_id, name)
        return ended + self._add(item, _CALL_DELTAS.get(type(item), ""), b"")

    def tool_arguments(self, index: int, delta: str) -> bytes:
        if self._open != "tool" or index != self._tool:
            raise ValueError(f"arguments for call {index}, which is not open")
        self._pieces.append(delta)
        if type(self._response.output[-1]) not in _CALL_DELTAS:
            return b""
        return self._delta(b"", delta)

    def finish(self, reason: str, usage: CompletionUsage) -> bytes:
        """`reason` is a chat finish reason: stop, length, tool_calls or content_filter."""
        self._response.finish(reason, usage)
        incomplete = self._response.status == "incomplete"
        ended = self._end_item("incomplete" if incomplete else "completed")
        return ended + self._whole("response.incomplete" if incomplete else "response.completed")

    def fail(self, message: str, code: str = "server_error") -> bytes:
        ended = self._end_item("incomplete")
        self._response.status = "failed"
        self._response.error = {"code": code, "message": message}
        return ended + self._whole("response.failed")

    def cancel(self) -> None:
        self._end_item("incomplete")
        self._response.status = "cancelled"

    @property
    def response(self) -> ResponseObject:
        return self._response

    def _begin_text(self) -> bytes:
        ended = self._end_item()
        self._open = "text"
        item = OutputMessage(id=self._new_id("msg"), status="in_progress", content=[])
        added = self._add(item, "response.output_text.delta", b'"content_index":0,"logprobs":')
        item.content.append(OutputText(text=""))
        return ended + added + self._part("response.content_part.added", item.content[0])

    def _begin_reasoning(self) -> bytes:
        ended = self._end_item()
        self._open = "reasoning"
        item = ReasoningItem(id=self._new_id("rs"), status="in_progress")
        if self._summarizes:
            added = self._add(item, "response.reasoning_summary_text.delta", b'"summary_index":0,')
            item.summary.append(SummaryText(text=""))
            return ended + added + self._summary("response.reasoning_summary_part.added", part=item.summary[0])
        added = self._add(item, "response.reasoning_text.delta", b'"content_index":0,')
        item.content.append(ReasoningContent(text=""))
        return ended + added + self._part("response.content_part.added", item.content[0])

    def _add(self, item: OutputItem, delta_event: str, delta_fields: bytes) -> bytes:
        index = len(self._response.output)
        self._response.output.append(item)
        self._place = {"item_id": item.id, "output_index": index}
        self._delta_head = (
            f'event: {delta_event}\ndata: {{"type":"{delta_event}","item_id":{_encode(item.id).decode()},'
            f'"output_index":{index},'
        ).encode() + delta_fields
        return self._event("response.output_item.added", output_index=index, item=item)

    def _end_item(self, status: ItemStatus = "completed") -> bytes:
        if self._open is None:
            return b""
        self._open = None
        item = self._response.output[-1]
        if isinstance(item, OutputMessage | ReasoningItem | _CallWithStatus):
            item.status = status
        text = "".join(self._pieces)
        self._pieces.clear()
        match item:
            case OutputMessage(content=[part]):
                part.text, part.logprobs, self._logprobs = text, self._logprobs, []
                done = self._event(
                    "response.output_text.done", **self._place, content_index=0, text=text, logprobs=part.logprobs
                ) + self._part("response.content_part.done", part)
            case ReasoningItem(content=[part]):
                part.text = text
                done = self._event(
                    "response.reasoning_text.done", **self._place, content_index=0, text=text
                ) + self._part("response.content_part.done", part)
            case ReasoningItem(summary=[summary]):
                summary.text = text
                done = self._summary("response.reasoning_summary_text.done", text=text) + self._summary(
                    "response.reasoning_summary_part.done", part=summary
                )
            case FunctionCallItem():
                item.arguments = text
                done = self._event(
                    "response.function_call_arguments.done", **self._place, name=item.name, arguments=text
                )
            case CustomCallItem():
                item.input = text
                done = self._event("response.custom_tool_call_input.done", **self._place, input=text)
            case LocalShellCallItem() | ShellCallItem() | PatchCallItem() | McpApprovalRequestItem():
                end_call(item, text)
                done = b""
            case _:
                done = b""
        return done + self._event("response.output_item.done", output_index=len(self._response.output) - 1, item=item)

    def _part(self, event: str, part: OutputText | ReasoningContent) -> bytes:
        return self._event(event, **self._place, content_index=0, part=part)

    def _summary(self, event: str, **fields: Any) -> bytes:
        return self._event(event, **self._place, summary_index=0, **fields)

    def _whole(self, event: str) -> bytes:
        return self._event(event, response=self._response)

    def _delta(self, fields: bytes, delta: str) -> bytes:
        number = self._sequence
        self._sequence = number + 1
        return b'%b%b"delta":%b,"sequence_number":%d}\n\n' % (self._delta_head, fields, _encode(delta), number)

    def _event(self, event: str, **fields: Any) -> bytes:
        data = _encode({"type": event, **fields, "sequence_number": self._sequence})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (event.encode(), data)

    def _new_id(self, prefix: str) -> str:
        return item_id(prefix, self._response.id, len(self._response.output))


Events = TypeVar("Events", EventStream, EventLog)


class ResponsesWriter(Generic[Events]):
    """Writes the one choice of a Responses stream."""

    def __init__(
        self,
        stream: ResponsesStream,
        tokenizer: Tokenizer | None,
        top_logprobs: int,
        events: Events,
        *,
        started: bool = False,
    ) -> None:
        """`started`: the events that open the stream are written."""
        self.events: Events = events
        self.error: DynamoException | None = None
        self._stream = stream
        self._tokenizer = tokenizer
        self._top_logprobs = top_logprobs
        self._tokens: list[TokenLogprob] = []
        self._started = started

    def escaped(self, text: str) -> None:
        self.text(json_unescaped(text))

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
        if written := self._stream.tool_arguments(index, fragment):  # an empty write would end the stream
            self.events.write(written)

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._tokens += tokens

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """A response has no field for them."""

    def finish(self, finish: Finish) -> None:
        usage = CompletionUsage.of(finish.usage)
        self.events.end(self._start() + self._stream.finish(finish.reason, usage))

    def fail(self, error: DynamoException) -> None:
        if self.events.ended.done():  # a response that was cancelled or stopped
            return
        self.error = error
        self.events.fail(self._stream.fail(error.public_message) if self.events.has_begun else b"")

    def _start(self) -> bytes:
        """The events that open the stream; built before the next one, as events are numbered."""
        if self._started:
            return b""
        self._started = True
        return self._stream.start()
