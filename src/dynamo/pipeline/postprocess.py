"""Turns an engine's token ids into text, reasoning, tool calls, a finish reason and usage.

The answer must not depend on how an engine groups its tokens, so unless only plain text is wanted, tokens are processed
one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dynamo.model.detokenize import Decoder, UnknownToken
from dynamo.pipeline.choice import ChoiceSink, Finish, TokenLogprob
from dynamo.pipeline.parse import Event, OutputParser, ReasoningText, Text, ToolArgs, ToolStart
from dynamo.pipeline.stops import StopStrings
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, TopLogprob, Usage
from dynamo.protocols.errors import DynamoException, ProtocolError, Unknown

_REASONS = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "cancelled": "stop",
    "abort": "stop",
    "content_filter": "content_filter",
}

End = tuple[str, str | int | None]
"""The finish reason, and the client's stop string or stop id that caused it."""


class Postprocess:
    """The sink of one choice's stream. It ends the answer at the client's and the model's stops.

    The engine knows the stop tokens too, so at one of them it may still send its last output, which can carry the
    usage. It is stopped only if it generates further tokens instead.
    """

    __slots__ = (
        "_attributed",
        "_choice",
        "_decoded_chars",
        "_decoder",
        "_end_ids",
        "_ended",
        "_engine_usage",
        "_include_stop",
        "_limit",
        "_min_tokens",
        "_one_by_one",
        "_one_call",
        "_parser",
        "_pending_logprobs",
        "_plain",
        "_prompt",
        "_reasoning_tokens",
        "_shown_chars",
        "_stop_ids",
        "_stop_worker",
        "_stops",
        "_token_ids",
        "_tool_finish_reason",
        "_wants_logprobs",
        "_wants_prompt_logprobs",
        "_worker",
        "count",
        "done",
        "tool",
    )

    def __init__(
        self,
        request: PreprocessedRequest,
        decoder: Decoder,
        choice: ChoiceSink,
        *,
        parser: OutputParser | None = None,
        one_call: bool = False,
        tool_finish_reason: str = "tool_calls",
        stop_worker: Callable[[], None],
        worker: Callable[[], str] = lambda: "the worker",
        token_ids: list[int] | None = None,
        one_by_one: bool = False,
    ) -> None:
        """`one_call` drops all but the first tool call; `tool_finish_reason` replaces `stop` if there were calls;
        `worker` names the worker in errors.

        The ids of the answer's tokens are appended to `token_ids`, each before its text is emitted. `one_by_one` emits
        the text of each token by itself, however the engine groups them.
        """
        conditions = request.stop_conditions
        self._choice = choice
        self._decoder = decoder
        self._parser = parser
        self._one_call = one_call
        self._tool_finish_reason = tool_finish_reason
        self._stop_worker = stop_worker
        self._worker = worker
        self._stop_ids = frozenset(conditions.stop_token_ids or ())
        self._end_ids = self._stop_ids.union(conditions.stop_token_ids_hidden or ())
        self._include_stop = bool(request.sampling_options.include_stop_str_in_output)
        self._stops = StopStrings(conditions.stop, include=self._include_stop) if conditions.stop else None
        self._limit = conditions.max_tokens or 1 << 62
        self._min_tokens = conditions.min_tokens or 0
        self._token_ids = token_ids
        self._one_by_one = one_by_one or token_ids is not None
        self._plain = self._stops is None and parser is None and not self._one_by_one
        self._prompt = request.token_ids
        self._wants_logprobs = request.output_options.logprobs is not None
        self._wants_prompt_logprobs = request.output_options.prompt_logprobs is not None
        self._ended: End | None = None
        self._engine_usage: Usage | None = None
        self._reasoning_tokens = 0
        self._attributed = 0
        self._decoded_chars = 0
        self._shown_chars = 0
        self._pending_logprobs: deque[tuple[int, TokenLogprob]] = deque()
        self.count = 0
        self.done = False
        self.tool: str | None = None
        """The last tool that the answer calls."""

    def tokens(self, ids: list[int]) -> None:
        if self.done:
            return
        if not self._plain:
            self._token_by_token(ids)
            return
        count = self.count + len(ids)
        if count <= self._limit and self._end_ids.isdisjoint(ids):
            self.count = count
            try:
                text = self._decoder.push_escaped(ids)
            except UnknownToken as error:
                self._reject(error)
                return
            if text:
                self._choice.escaped(text)
            return
        shown, end = self._cut(ids)
        self._push_tokens(shown)
        if end and not self.done:
            self._answer_ended(end, engine_continues=self.count < count)

    def item(self, output: EngineOutput) -> None:
        if self.done:
            return
        if output.completion_usage:
            self._engine_usage = output.completion_usage
        if output.prompt_logprobs and self._wants_prompt_logprobs:
            self._choice.prompt_logprobs(prompt_logprobs(self._prompt, output.prompt_logprobs))
        if output.text is not None:
            self._text_output(output, output.text)
        elif output.log_probs and self._wants_logprobs:
            self._token_by_token(output.token_ids, _logprobs(output))
        elif output.token_ids:
            self.tokens(output.token_ids)
        reason = output.finish_reason
        if reason is None or self.done:
            return
        if self._ended:
            self._finish(self._ended)
        elif reason.startswith("error"):
            self.fail(Unknown(reason.removeprefix("error").lstrip(": ") or "the engine failed"))
        elif shown := _REASONS.get(reason):
            self._finish((shown, output.stop_reason))
        else:
            self.fail(ProtocolError(f"{self._worker()} ended with the unknown finish reason {reason[:64]!r}"))

    @property
    def complete(self) -> bool:
        """Whether the client has the whole answer, even if the engine has not yet ended the stream."""
        return self.done or self._ended is not None or self.count >= self._limit

    def end(self) -> None:
        """The engine ended the stream, with or without a finish reason."""
        if not self.done:
            self._finish(self._ended or ("length" if self.count >= self._limit else "stop", None))

    def fail(self, error: DynamoException) -> None:
        if self.complete:
            self.end()
        else:
            self.done = True
            self._choice.fail(error)

    def usage(self) -> Usage:
        """The engine's details where it reported any, made to fit the prompt that was sent and the tokens that came.

        An engine may have read more than the prompt, such as images, but not less.
        """
        prompt, reported = len(self._prompt), self._engine_usage
        details = {"reasoning_tokens": self._reasoning_tokens} if self._reasoning_tokens else None
        if reported is None:
            return Usage(
                prompt_tokens=prompt,
                completion_tokens=self.count,
                total_tokens=prompt + self.count,
                completion_tokens_details=details,
            )
        return Usage(
            prompt_tokens=max(prompt, reported.prompt_tokens),
            completion_tokens=self.count,
            prompt_tokens_details=reported.prompt_tokens_details,
            completion_tokens_details=reported.completion_tokens_details or details,
        ).consistent()

    def _token_by_token(self, ids: list[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        for position, id in enumerate(ids):
            if self._ended:
                self._end_early(self._ended)
                return
            shown, end = self._cut([id])
            if self._token_ids is not None and (end is None or end[0] != "length"):
                self._token_ids.append(id)
            if shown:
                if position < len(logprobs):
                    self._pending_logprobs.append((self._decoded_chars, logprobs[position]))
                self._push_tokens(shown)
            if end and not self.done:
                self._answer_ended(end, engine_continues=end[0] == "length")
            if self.done:
                return

    def _answer_ended(self, end: End, *, engine_continues: bool) -> None:
        """Stop the engine if it sent more than the last token; otherwise let it send its last output."""
        if engine_continues:
            self._end_early(end)
        else:
            self._ended, self._plain = end, False

    def _cut(self, ids: list[int]) -> tuple[list[int], End | None]:
        """Count these ids up to the end of the answer. Returns those to show, and the end if it was reached."""
        for position, id in enumerate(ids):
            if self.count == self._limit:
                return ids[:position], ("length", None)
            self.count += 1
            if id in self._end_ids and self.count >= self._min_tokens:
                from_client = id in self._stop_ids
                shown = ids[: position + (from_client and self._include_stop)]
                return shown, ("stop", id if from_client else None)
        return ids, None

    def _text_output(self, output: EngineOutput, text: str) -> None:
        """Text from an engine that detokenizes: it has applied the stop tokens, so only stop strings are left."""
        if self._ended:
            self._end_early(self._ended)
            return
        self.count += len(output.token_ids)
        if self._token_ids is not None:
            self._token_ids += output.token_ids
        if self._wants_logprobs:
            self._pending_logprobs += [(self._decoded_chars, token) for token in _logprobs(output)]
        self._push_text(text)

    def _push_tokens(self, ids: list[int]) -> None:
        try:
            text = self._decoder.push(ids)
        except UnknownToken as error:
            self._reject(error)
        else:
            self._push_text(text)

    def _reject(self, error: UnknownToken) -> None:
        self.done = True
        self._choice.fail(ProtocolError(f"{self._worker()} sent {error}"))
        self._stop_worker()

    def _push_text(self, text: str) -> None:
        self._decoded_chars += len(text)
        if self._stops is not None:
            text = self._stops.push(text, armed=self.count >= self._min_tokens)
        self._emit_text(text)
        if self._stops is not None and self._stops.matched is not None:
            self._end_early(("stop", self._stops.matched))

    def _emit_text(self, text: str) -> None:
        if not text:
            return
        self._shown_chars += len(text)
        if self._pending_logprobs:
            self._emit_logprobs(self._shown_chars)
        if self._parser is None:
            self._choice.text(text)
        else:
            self._emit(self._parser.feed(text))
            if self._parser.is_over:
                self._parser, self._plain = None, self._stops is None and not self._one_by_one

    def _emit_logprobs(self, shown: int) -> None:
        """Emit those of tokens that begin before `shown`; the others may still become part of a stop string."""
        ready = []
        while self._pending_logprobs and self._pending_logprobs[0][0] < shown:
            ready.append(self._pending_logprobs.popleft()[1])
        if ready:
            self._choice.logprobs(ready)

    def _emit(self, events: list[Event]) -> None:
        if not events:
            return
        if any(isinstance(event, ReasoningText) for event in events):
            self._reasoning_tokens += self.count - self._attributed
        self._attributed = self.count
        choice = self._choice
        for event in events:
            match event:
                case Text(text):
                    choice.text(text)
                case ReasoningText(text):
                    choice.reasoning(text)
                case ToolStart(index, id, name) if not (index and self._one_call):
                    self.tool = name
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
            self._emit_text(rest)
            if self._stops is None or self._stops.matched is None:
                self._emit_logprobs(1 << 62)
        if self._parser is not None:
            self._emit(self._parser.finish(cut=reason == "length"))
            if self._parser.saw_tool_call and reason == "stop":
                reason = self._tool_finish_reason
        self._choice.finish(Finish(reason, self.usage(), stop_reason))


def _logprobs(output: EngineOutput) -> list[TokenLogprob]:
    tops = output.top_logprobs or []
    return [
        TokenLogprob(id, logprob, tops[position] if position < len(tops) else [])
        for position, (id, logprob) in enumerate(zip(output.token_ids, output.log_probs or (), strict=False))
    ]


def prompt_logprobs(prompt: Sequence[int], reported: Sequence[list[TopLogprob] | None] = ()) -> list[TokenLogprob]:
    """One entry per token of the prompt, without a log probability where the engine reported none."""
    tokens = []
    for position, id in enumerate(prompt):
        tops = (reported[position] if position < len(reported) else None) or []
        own = next((top.logprob for top in tops if top.token_id == id), None)
        tokens.append(TokenLogprob(id, own, tops))
    return tokens
