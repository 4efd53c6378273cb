"""Answers that stream, as OpenAI sends them: role first, then content, the finish in its own chunk, usage, `[DONE]`.

Chunks are byte templates: between the id and the finish reason only the text changes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.frontend.errors import error_answer
from dynamo.frontend.sse import DONE, EventStream
from dynamo.model import Tokenizer, json_escaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.logprobs import chat_logprobs, text_logprobs
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.openai_answers import CompletionUsage

_json = msgspec.json.Encoder()


class Chunks:
    """One streamed answer: the choices write their own chunks, this one knows when all of them are done."""

    def __init__(
        self,
        events: EventStream,
        *,
        id: str,
        created: int,
        model: str,
        object: str,
        choices: int,
        include_usage: bool = False,
        continuous_usage: bool = False,
        tokenizer: Tokenizer | None = None,
        request_id: str = "",
    ) -> None:
        self.events = events
        self.error: DynamoException | None = None
        self.usage = Usage()
        self.finish_reason: str | None = None
        self.tokenizer = tokenizer
        self.continuous_usage = continuous_usage
        self.head = (
            f'data: {{"id":"{id}","object":"{object}","created":{created},"model":"{json_escaped(model)}","choices":['
        )
        self._include_usage = include_usage
        self._running = choices
        self._request_id = request_id
        self._nvext: dict[str, Any] | None = None

    @property
    def tail(self) -> str:
        """What closes a chunk; with usage asked for, OpenAI sends it as null on all chunks but the last."""
        return '],"usage":null}\n\n' if self._include_usage else "]}\n\n"

    def add_nvext(self, fields: dict[str, Any]) -> None:
        """Extra fields for the last chunk."""
        self._nvext = {**(self._nvext or {}), **fields}

    def finished(self, finish: Finish, chunk: str) -> None:
        add_usage(self.usage, finish.usage)
        self.finish_reason = self.finish_reason or finish.reason
        self._running -= 1
        if self._running:
            self.events.write(chunk.encode())
            return
        if self._nvext:
            chunk = chunk.removesuffix("}\n\n") + f',"nvext":{_json.encode(self._nvext).decode()}}}\n\n'
        if self._include_usage:
            chunk += f'{self.head}],"usage":{_json.encode(CompletionUsage.of(self.usage)).decode()}}}\n\n'
        self.events.end(chunk.encode() + DONE)

    def failed(self, error: DynamoException) -> None:
        """After the first byte an error is an event; before it the handler turns it into a status."""
        if self.error is None:
            self.error = error
            if self.events.has_begun:
                body = _json.encode(error_answer(error, self._request_id))
                self.events.end(b"data: " + body + b"\n\n" + DONE)
            else:
                self.events.end()


def add_usage(total: Usage, part: Usage) -> None:
    """Sum the usage of several choices; the prompt of `n` choices counts as often as it was read."""
    total.prompt_tokens += part.prompt_tokens
    total.completion_tokens += part.completion_tokens
    total.total_tokens += part.total_tokens
    for field in ("prompt_tokens_details", "completion_tokens_details"):
        details = getattr(part, field)
        if details:
            known = getattr(total, field) or {}
            setattr(total, field, {**details, **{k: _plus(v, details.get(k)) for k, v in known.items()}})


def _plus(known: Any, more: Any) -> Any:
    return known + more if isinstance(known, int) and isinstance(more, int) else known


class ChatChoice:
    """One choice of a streamed chat."""

    def __init__(self, chunks: Chunks, index: int, *, reasoning_field: str = "reasoning_content") -> None:
        self._chunks = chunks
        self._write = chunks.events.write
        self._begun = False
        self._logprobs: list[TokenLogprob] = []
        self._usage: Usage | None = Usage() if chunks.continuous_usage else None
        self._delta = f'{chunks.head}{{"index":{index},"delta":'
        self._open = self._delta + '{"content":"'
        self._close = f'"}},"logprobs":null,"finish_reason":null}}{chunks.tail}'
        self._reasoning_field = reasoning_field

    def escaped(self, text: str) -> None:
        if self._begun and not self._logprobs:
            self._write((self._open + text + self._close).encode())
        else:
            self._chunk(f'{{"content":"{text}"}}')

    def text(self, text: str) -> None:
        self.escaped(json_escaped(text))

    def reasoning(self, text: str) -> None:
        self._chunk(f'{{"{self._reasoning_field}":"{json_escaped(text)}"}}')

    def tool_start(self, index: int, id: str, name: str) -> None:
        function = f'{{"name":"{json_escaped(name)}","arguments":""}}'
        call = f'{{"index":{index},"id":"{json_escaped(id)}","type":"function","function":{function}}}'
        self._chunk(f'{{"tool_calls":[{call}]}}')

    def tool_arguments(self, index: int, fragment: str) -> None:
        call = f'{{"index":{index},"function":{{"arguments":"{json_escaped(fragment)}"}}}}'
        self._chunk(f'{{"tool_calls":[{call}]}}')

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._logprobs += tokens

    def _chunk(self, delta: str) -> None:
        before = "" if self._begun else self._begin()
        self._write((before + self._one(delta, "null")).encode())

    def _begin(self) -> str:
        self._begun = True
        return self._one('{"role":"assistant","content":""}', "null")

    def _one(self, delta: str, finish: str) -> str:
        logprobs = "null"
        if self._logprobs and not delta.startswith('{"role"'):
            assert self._chunks.tokenizer
            logprobs = _json.encode(chat_logprobs(self._chunks.tokenizer, self._logprobs)).decode()
            self._logprobs = []
        return f'{self._delta}{delta},"logprobs":{logprobs},"finish_reason":{finish}}}{self._chunks.tail}'

    def finish(self, finish: Finish) -> None:
        before = "" if self._begun else self._begin()
        self._chunks.finished(finish, before + self._one("{}", f'"{finish.reason}"'))

    def fail(self, error: DynamoException) -> None:
        self._chunks.failed(error)


class TextChoice:
    """One choice of a streamed completion, which may begin by repeating its prompt."""

    def __init__(self, chunks: Chunks, index: int, *, echo: str = "") -> None:
        self._chunks = chunks
        self._write = chunks.events.write
        self._logprobs: list[TokenLogprob] = []
        self._offset = len(echo)
        self._echo = json_escaped(echo)
        self._open = f'{chunks.head}{{"index":{index},"text":"'
        self._close = f'","logprobs":null,"finish_reason":null}}{chunks.tail}'

    def escaped(self, text: str) -> None:
        if self._echo or self._logprobs:
            self._write(self._one(text, "null").encode())
        else:
            self._write((self._open + text + self._close).encode())

    def text(self, text: str) -> None:
        self.escaped(json_escaped(text))

    def reasoning(self, text: str) -> None:
        self.text(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        raise AssertionError("completions are not parsed for tool calls")

    def tool_arguments(self, index: int, fragment: str) -> None:
        raise AssertionError("completions are not parsed for tool calls")

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._logprobs += tokens

    def _one(self, text: str, finish: str) -> str:
        text, self._echo = self._echo + text, ""
        logprobs = "null"
        if self._logprobs:
            assert self._chunks.tokenizer
            told = text_logprobs(self._chunks.tokenizer, self._logprobs, self._offset)
            self._offset += sum(map(len, told.tokens))
            logprobs = _json.encode(told).decode()
            self._logprobs = []
        return f'{self._open}{text}","logprobs":{logprobs},"finish_reason":{finish}}}{self._chunks.tail}'

    def finish(self, finish: Finish) -> None:
        self._chunks.finished(finish, self._one("", f'"{finish.reason}"'))

    def fail(self, error: DynamoException) -> None:
        self._chunks.failed(error)
