"""From token ids back to what a client reads: text, reasoning, tool calls, the reason for the end, and what it cost.

However an engine groups its tokens, the answer is the same: where anything but the bare text is wanted, tokens are
looked at one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dynamo.model.detokenize import Decoder
from dynamo.pipeline.choice import ChoiceSink, Finish, TokenLogprob
from dynamo.pipeline.parse import Event, OutputParser, Text, ThoughtText, ToolArgs, ToolStart
from dynamo.pipeline.stops import StopStrings
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, TopLogprob, Usage
from dynamo.protocols.errors import DynamoException, Unknown

_REASONS = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "cancelled": "stop",
    "abort": "stop",
    "content_filter": "content_filter",
}

End = tuple[str, str | int | None]
"""The finish reason, and the stop string or id of the client's that brought it about."""


class Postprocess:
    """The sink of one choice's stream. It ends the stream itself where the client's or the model's stops say so.

    At a stop token the engine, which knows those too, is given the chance to end by itself: its last word may bring
    what the request cost. One that goes on instead is stopped.
    """

    __slots__ = (
        "_attributed",
        "_choice",
        "_decoded",
        "_decoder",
        "_ends",
        "_include",
        "_limit",
        "_min_tokens",
        "_one_call",
        "_over",
        "_parser",
        "_plain",
        "_prompt",
        "_reason_of_calls",
        "_reasoning_tokens",
        "_shown",
        "_stop_ids",
        "_stop_worker",
        "_stops",
        "_told_usage",
        "_waiting",
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
        one_call: bool = False,
        reason_of_calls: str = "tool_calls",
        stop_worker: Callable[[], None],
    ) -> None:
        """`one_call` keeps the first tool call only; `reason_of_calls` stands for `stop` where there was one."""
        conditions = request.stop_conditions
        self._choice = choice
        self._decoder = decoder
        self._parser = parser
        self._one_call = one_call
        self._reason_of_calls = reason_of_calls
        self._stop_worker = stop_worker
        self._stop_ids = frozenset(conditions.stop_token_ids or ())
        self._ends = self._stop_ids.union(conditions.stop_token_ids_hidden or ())
        self._include = bool(request.sampling_options.include_stop_str_in_output)
        self._stops = StopStrings(conditions.stop, include=self._include) if conditions.stop else None
        self._limit = conditions.max_tokens or 1 << 62
        self._min_tokens = conditions.min_tokens or 0
        self._plain = self._stops is None and parser is None
        self._prompt = request.token_ids
        self._over: End | None = None
        self._told_usage: Usage | None = None
        self._reasoning_tokens = 0
        self._attributed = 0
        self._decoded = 0
        self._shown = 0
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self.count = 0
        self.done = False

    def tokens(self, ids: list[int]) -> None:
        if self.done:
            return
        if not self._plain:
            self._one_by_one(ids)
            return
        count = self.count + len(ids)
        if count <= self._limit and self._ends.isdisjoint(ids):
            self.count = count
            text = self._decoder.push_escaped(ids)
            if text:
                self._choice.escaped(text)
            return
        shown, end = self._cut(ids)
        self._say(self._decoder.push(shown))
        if end:
            self._reached(end, goes_on=self.count < count)

    def item(self, output: EngineOutput) -> None:
        if self.done:
            return
        if output.completion_usage:
            self._told_usage = output.completion_usage
        if output.prompt_logprobs:
            self._choice.prompt_logprobs(prompt_logprobs(self._prompt, output.prompt_logprobs))
        if output.text is not None:
            self._written(output, output.text)
        elif output.log_probs:
            self._one_by_one(output.token_ids, _logprobs(output))
        elif output.token_ids:
            self.tokens(output.token_ids)
        reason = output.finish_reason
        if reason is None or self.done:
            return
        if self._over:
            self._finish(self._over)
        elif reason.startswith("error"):
            self.fail(Unknown(reason.removeprefix("error").lstrip(": ") or "the engine failed"))
        else:
            self._finish((_REASONS.get(reason, "stop"), output.stop_reason))

    @property
    def complete(self) -> bool:
        """The client has the whole answer, whether or not the engine has said that this was it."""
        return self.done or self._over is not None or self.count >= self._limit

    def end(self) -> None:
        """An engine that just ends has said all it had to say."""
        if not self.done:
            self._finish(self._over or ("length" if self.count >= self._limit else "stop", None))

    def fail(self, error: DynamoException) -> None:
        if self.complete:
            self.end()
        else:
            self.done = True
            self._choice.fail(error)

    def usage(self) -> Usage:
        """What the engine counted, where it did; the tokens the client pays for are the ones it got."""
        told = self._told_usage
        prompt = told.prompt_tokens if told and told.prompt_tokens else len(self._prompt)
        details = told.completion_tokens_details if told else None
        if details is None and self._reasoning_tokens:
            details = {"reasoning_tokens": self._reasoning_tokens}
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self.count,
            total_tokens=prompt + self.count,
            prompt_tokens_details=told.prompt_tokens_details if told else None,
            completion_tokens_details=details,
        )

    def _one_by_one(self, ids: list[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        for position, id in enumerate(ids):
            if self._over:
                self._end_early(self._over)
                return
            shown, end = self._cut([id])
            if shown:
                if position < len(logprobs):
                    self._waiting.append((self._decoded, logprobs[position]))
                self._say(self._decoder.push(shown))
            if end and not self.done:
                self._reached(end, goes_on=end[0] == "length")
            if self.done:
                return

    def _reached(self, end: End, *, goes_on: bool) -> None:
        """The answer is complete; an engine that did not go on after the last token may have something to add."""
        if goes_on:
            self._end_early(end)
        else:
            self._over, self._plain = end, False

    def _cut(self, ids: list[int]) -> tuple[list[int], End | None]:
        """Counts these ids up to where the answer ends. What is shown of them, and that end, if there is one."""
        for position, id in enumerate(ids):
            if self.count == self._limit:
                return ids[:position], ("length", None)
            self.count += 1
            if id in self._ends and self.count >= self._min_tokens:
                own = id in self._stop_ids
                return ids[: position + (own and self._include)], ("stop", id if own else None)
        return ids, None

    def _written(self, output: EngineOutput, text: str) -> None:
        """An engine that detokenises has cut its text as it should be; only the client's stop strings are left."""
        if self._over:
            self._end_early(self._over)
            return
        self.count += len(output.token_ids)
        self._waiting += [(self._decoded, token) for token in _logprobs(output)]
        self._say(text)

    def _say(self, text: str) -> None:
        self._decoded += len(text)
        if self._stops is not None:
            text = self._stops.push(text, armed=self.count >= self._min_tokens)
        self._show(text)
        if self._stops is not None and self._stops.matched is not None:
            self._end_early(("stop", self._stops.matched))

    def _show(self, text: str) -> None:
        if not text:
            return
        self._shown += len(text)
        if self._waiting:
            self._tell_logprobs(self._shown)
        if self._parser is None:
            self._choice.text(text)
        else:
            self._tell(self._parser.feed(text))

    def _tell_logprobs(self, shown: int) -> None:
        """Tokens of which nothing is shown yet wait: they may turn out to be part of a stop string."""
        ready = []
        while self._waiting and self._waiting[0][0] < shown:
            ready.append(self._waiting.popleft()[1])
        if ready:
            self._choice.logprobs(ready)

    def _tell(self, events: list[Event]) -> None:
        if not events:
            return
        if any(isinstance(event, ThoughtText) for event in events):
            self._reasoning_tokens += self.count - self._attributed
        self._attributed = self.count
        choice = self._choice
        for event in events:
            match event:
                case Text(text):
                    choice.text(text)
                case ThoughtText(text):
                    choice.reasoning(text)
                case ToolStart(index, id, name) if not (index and self._one_call):
                    choice.tool_start(index, id, name)
                case ToolArgs(index, fragment) if not (index and self._one_call):
                    choice.tool_arguments(index, fragment)

    def _end_early(self, end: End) -> None:
        self._finish(end)
        self._stop_worker()

    def _finish(self, end: End) -> None:
        self.done = True
        reason, stop_reason = end
        if self._stops is None or self._stops.matched is None:
            rest = self._decoder.flush()
            if self._stops is not None:
                rest = self._stops.push(rest, armed=self.count >= self._min_tokens)
                if self._stops.matched is None:
                    rest += self._stops.flush()
                else:
                    reason, stop_reason = "stop", self._stops.matched
            self._show(rest)
            if self._stops is None or self._stops.matched is None:
                self._tell_logprobs(1 << 62)
        if self._parser is not None:
            self._tell(self._parser.finish())
            if self._parser.saw_tool_call and reason == "stop":
                reason = self._reason_of_calls
        self._choice.finish(Finish(reason, self.usage(), stop_reason))


def _logprobs(output: EngineOutput) -> list[TokenLogprob]:
    tops = output.top_logprobs or []
    return [
        TokenLogprob(id, logprob, tops[position] if position < len(tops) else [])
        for position, (id, logprob) in enumerate(zip(output.token_ids, output.log_probs or (), strict=False))
    ]


def prompt_logprobs(prompt: Sequence[int], told: Sequence[list[TopLogprob] | None] = ()) -> list[TokenLogprob]:
    """What an engine told of a prompt, token by token; nothing is known of those it left out."""
    tokens = []
    for position, id in enumerate(prompt):
        tops = (told[position] if position < len(told) else None) or []
        own = next((top.logprob for top in tops if top.token_id == id), None)
        tokens.append(TokenLogprob(id, own, tops))
    return tokens
