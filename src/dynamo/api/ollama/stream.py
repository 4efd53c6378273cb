"""Answers of Ollama's routes: a JSON object per line, the last with the counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET

from dynamo.api.answers.sse import EventStream
from dynamo.api.ollama.messages import OllamaAnswer, OllamaCall, OllamaError, OllamaFunction, OllamaReply
from dynamo.model import json_unescaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.protocols.answers import ChatCompletion
from dynamo.protocols.errors import DynamoException

NDJSON = "application/x-ndjson"
AT_ONCE = 0.001
"""Seconds: tokens that came within them left their worker together."""


class OllamaLines:
    """Builds the lines of one answer."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._began = time.perf_counter()
        self.first_output: Callable[[], float | None] = lambda: None
        """Says when the worker first produced output, on the clock of `perf_counter`."""

    def piece(self, text: str = "", thinking: str = "", calls: list[OllamaCall] | None = None) -> OllamaAnswer:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        answer = OllamaAnswer(model=self._model, created_at=now)
        if self._is_chat:
            answer.message = OllamaReply(content=text, thinking=thinking or UNSET, tool_calls=calls or UNSET)
        else:
            answer.response = text
            if thinking:
                answer.thinking = thinking
        return answer

    def last(self, answer: OllamaAnswer, reason: str, prompt_tokens: int, tokens: int) -> OllamaAnswer:
        now = time.perf_counter()
        answer.done = True
        answer.done_reason = "length" if reason == "length" else "stop"
        answer.total_duration, answer.load_duration = _nanoseconds(now - self._began), 0
        answer.prompt_eval_count, answer.eval_count = prompt_tokens, tokens
        first = self.first_output()
        if first is not None:
            answer.prompt_eval_duration = _nanoseconds(first - self._began)
            # What came at once was not generated at once: nobody measured how long it took.
            if now - first >= AT_ONCE:
                answer.eval_duration = _nanoseconds(now - first)
        return answer

    def whole(self, chat: ChatCompletion) -> OllamaAnswer:
        choice, usage = chat.choices[0], chat.usage
        said = choice.message
        calls = [_call(call.name, call.arguments) for call in said.tool_calls or ()]
        answer = self.piece(said.content or "", said.reasoning_content or "", calls or None)
        return self.last(answer, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens)


class OllamaWriter:
    """Writes the one choice of a stream. Ollama sends a call as a whole."""

    def __init__(self, answers: OllamaLines) -> None:
        self.events = EventStream(NDJSON)
        self.error: DynamoException | None = None
        self._answers = answers
        self._calls: list[tuple[str, list[str]]] = []

    def escaped(self, text: str) -> None:
        self.text(json_unescaped(text))

    def text(self, text: str) -> None:
        self.events.write(_line(self._answers.piece(text)))

    def reasoning(self, text: str) -> None:
        self.events.write(_line(self._answers.piece(thinking=text)))

    def tool_start(self, index: int, id: str, name: str) -> None:
        self._calls.append((name, []))

    def tool_arguments(self, index: int, fragment: str) -> None:
        self._calls[-1][1].append(fragment)

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        """These routes do not offer them."""

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """These routes do not offer them."""

    def finish(self, finish: Finish) -> None:
        calls = [_call(name, "".join(fragments)) for name, fragments in self._calls]
        before = _line(self._answers.piece(calls=calls)) if calls else b""
        usage = finish.usage
        last = self._answers.last(self._answers.piece(), finish.reason, usage.prompt_tokens, usage.completion_tokens)
        self.events.end(before + _line(last))

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.events.end(_line(OllamaError.of(error)) if self.events.has_begun else b"")


def _call(name: str, arguments: str) -> OllamaCall:
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):  # cut off by the limit
        parsed = {}
    return OllamaCall(function=OllamaFunction(name=name, arguments=parsed if isinstance(parsed, dict) else {}))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(answer: OllamaAnswer | OllamaError) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
