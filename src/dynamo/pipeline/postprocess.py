"""From token ids back to what a client reads: text, reasoning, tool calls, the reason for the end, and what it cost."""

from __future__ import annotations

from collections.abc import Callable

from dynamo.model.detokenize import Decoder
from dynamo.pipeline.choice import ChoiceSink, Finish, TokenLogprob
from dynamo.pipeline.parse import OutputParser, Reasoning, Text, ToolArgs, ToolStart
from dynamo.pipeline.stops import StopStrings
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Usage
from dynamo.protocols.errors import DynamoException, Unknown

_REASONS = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "cancelled": "stop",
    "abort": "stop",
    "content_filter": "content_filter",
}


class Postprocess:
    """The sink of one choice's stream. It ends the stream itself where the client's or the model's stops say so."""

    __slots__ = (
        "_choice",
        "_decoder",
        "_ends",
        "_limit",
        "_min_tokens",
        "_parser",
        "_plain",
        "_prompt_tokens",
        "_stop_ids",
        "_stop_worker",
        "_stops",
        "_usage",
        "count",
        "done",
    )

    def __init__(
        self,
        request: PreprocessedRequest,
        decoder: Decoder,
        choice: ChoiceSink,
        *,
        parser: OutputParser | None = None,
        stop_worker: Callable[[], None],
    ) -> None:
        conditions = request.stop_conditions
        self._choice = choice
        self._decoder = decoder
        self._parser = parser
        self._stop_worker = stop_worker
        self._stop_ids = frozenset(conditions.stop_token_ids or ())
        self._ends = self._stop_ids.union(conditions.stop_token_ids_hidden or ())
        self._stops = (
            StopStrings(conditions.stop, include=bool(request.sampling_options.include_stop_str_in_output))
            if conditions.stop
            else None
        )
        self._limit = conditions.max_tokens or 1 << 62
        self._min_tokens = conditions.min_tokens or 0
        self._plain = self._stops is None and parser is None
        self._prompt_tokens = len(request.token_ids)
        self._usage: Usage | None = None
        self.count = 0
        self.done = False

    def tokens(self, ids: list[int]) -> None:
        if self.done:
            return
        count = self.count + len(ids)
        if count > self._limit or not self._ends.isdisjoint(ids):
            self._up_to_an_end(ids)
            return
        self.count = count
        if self._plain:
            text = self._decoder.push_escaped(ids)
            if text:
                self._choice.escaped(text)
        else:
            self._say(self._decoder.push(ids))

    def item(self, output: EngineOutput) -> None:
        if self.done:
            return
        if output.completion_usage:
            self._usage = output.completion_usage
        if output.log_probs:
            self._logprobs(output)
        if output.text is not None:
            self.count += len(output.token_ids)
            self._say(output.text)
        elif output.token_ids:
            self.tokens(output.token_ids)
        reason = output.finish_reason
        if reason is None or self.done:
            return
        if reason.startswith("error"):
            self.fail(Unknown(reason.removeprefix("error").lstrip(": ") or "the engine failed"))
        else:
            self._finish(_REASONS.get(reason, "stop"), output.stop_reason)

    def end(self) -> None:
        """An engine that just ends has said all it had to say."""
        if not self.done:
            self._finish("length" if self.count >= self._limit else "stop", None)

    def fail(self, error: DynamoException) -> None:
        if not self.done:
            self.done = True
            self._choice.fail(error)

    def _up_to_an_end(self, ids: list[int]) -> None:
        """Somewhere in these ids the answer ends; what follows is not the client's."""
        for position, id in enumerate(ids):
            self.count += 1
            if id in self._ends and self.count >= self._min_tokens:
                self._say(self._decoder.push(ids[:position]))
                if not self.done:
                    self._finish("stop", id if id in self._stop_ids else None)
                    self._stop_worker()
                return
            if self.count == self._limit and position + 1 < len(ids):
                self._say(self._decoder.push(ids[: position + 1]))
                if not self.done:
                    self._finish("length", None)
                    self._stop_worker()
                return
        self._say(self._decoder.push(ids))

    def _say(self, text: str) -> None:
        if not text:
            return
        stops = self._stops
        if stops is not None and self.count >= self._min_tokens:
            text = stops.push(text)
            self._parse(text)
            if stops.matched is not None:
                self._finish("stop", stops.matched)
                self._stop_worker()
        else:
            self._parse(text)

    def _parse(self, text: str) -> None:
        if not text:
            return
        if self._parser is None:
            self._choice.text(text)
            return
        for event in self._parser.feed(text):
            self._tell(event)

    def _tell(self, event: Text | Reasoning | ToolStart | ToolArgs) -> None:
        match event:
            case Text(text):
                self._choice.text(text)
            case Reasoning(text):
                self._choice.reasoning(text)
            case ToolStart(index, id, name):
                self._choice.tool_start(index, id, name)
            case ToolArgs(index, fragment):
                self._choice.tool_arguments(index, fragment)

    def _logprobs(self, output: EngineOutput) -> None:
        tops = output.top_logprobs or []
        self._choice.logprobs(
            [
                TokenLogprob(id, logprob, tops[position] if position < len(tops) else [])
                for position, (id, logprob) in enumerate(zip(output.token_ids, output.log_probs or (), strict=False))
                if id not in self._ends
            ]
        )

    def _finish(self, reason: str, stop_reason: str | int | None) -> None:
        self.done = True
        stopped_by_text = self._stops is not None and self._stops.matched is not None
        if not stopped_by_text:
            rest = self._decoder.flush()
            if self._stops is not None:
                rest = self._stops.push(rest) + self._stops.flush()
                if self._stops.matched is not None:
                    reason, stop_reason = "stop", self._stops.matched
            self._parse(rest)
        if self._parser is not None:
            for event in self._parser.finish():
                self._tell(event)
            if self._parser.saw_tool_call:
                reason = "tool_calls"
        self._choice.finish(Finish(reason, self._final_usage(), stop_reason))

    def _final_usage(self) -> Usage:
        """What the engine counted, where it did; the numbers the client pays for are the ones it got."""
        told = self._usage
        prompt = told.prompt_tokens if told and told.prompt_tokens else self._prompt_tokens
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self.count,
            total_tokens=prompt + self.count,
            prompt_tokens_details=told.prompt_tokens_details if told else None,
            completion_tokens_details=told.completion_tokens_details if told else None,
        )
