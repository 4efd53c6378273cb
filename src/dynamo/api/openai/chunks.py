"""Streamed answers as OpenAI sends them: role first, then content, the finish in its own chunk, usage, `[DONE]`.

Chunks are byte templates: between the id and the finish reason only the text changes.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dynamo.api.answers.errors import error_answer
from dynamo.api.answers.numbered import events_of
from dynamo.api.answers.sse import DONE
from dynamo.model import json_escaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.logprobs import chat_logprobs, text_logprobs
from dynamo.protocols.answers import CompletionUsage
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException
from dynamo.serving.collect import add_usage
from dynamo.serving.completion import Completion
from dynamo.serving.conversation import Conversation

_json = msgspec.json.Encoder()


class Chunks:
    """One streamed answer. Its choices write their own chunks; it ends when the last of them has."""

    def __init__(self, inference: Conversation | Completion, top_logprobs: int | None, request_id: str) -> None:
        options = inference.request.stream_options
        self.events = events_of(inference, inference.choice_count)
        self.error: DynamoException | None = None
        self.usage = Usage()
        self.usage_of = inference.usage_of
        self.tokenizer = inference.tokenizer
        self.top_logprobs = top_logprobs or 0
        self.head = (
            f'data: {{"id":"{inference.id}","object":"{inference.chunk_object}","created":{inference.created},'
            f'"model":"{json_escaped(inference.model.name)}","choices":['
        )
        self._include_usage = bool(options and options.include_usage)
        self.continuous_usage = bool(self._include_usage and options and options.continuous_usage_stats)
        # If the client wants the usage, OpenAI sends `"usage": null` on all chunks but the last.
        self.tail = '],"usage":null}\n\n' if self._include_usage else "]}\n\n"
        self._running = inference.choice_count
        self._per_prompt = inference.n
        """How many choices share a prompt, whose tokens count once."""
        self._nvext = inference.nvext
        self._request_id = request_id

    def usage_tail(self, usage: Usage) -> str:
        return f'],"usage":{_usage(usage)}}}\n\n'

    def finished(self, index: int, finish: Finish, chunk: str) -> None:
        if self._include_usage:
            add_usage(self.usage, finish.usage, prompt=index % self._per_prompt == 0)
        self._running -= 1
        if self._running:
            self.events.writer(index)(chunk.encode())
            return
        nvext = self._nvext(finish.stop_reason)
        if nvext:
            chunk = chunk.removesuffix("}\n\n") + f',"nvext":{_json.encode(nvext).decode()}}}\n\n'
        if self._include_usage:
            chunk += self.head + self.usage_tail(self.usage)
        self.events.end(chunk.encode() + DONE, index)

    def failed(self, error: DynamoException) -> None:
        """After the first byte an error is an event; before it the handler turns it into a status."""
        if self.error is None:
            self.error = error
            self.events.fail(error_events(error, self._request_id) if self.events.has_begun else b"")


def _usage(usage: Usage) -> str:
    return _json.encode(CompletionUsage.of(usage)).decode()


def error_events(error: DynamoException, request_id: str) -> bytes:
    """The end of a stream that fails after its first event."""
    return b"data: " + _json.encode(error_answer(error, request_id)) + b"\n\n" + DONE


class _ChoiceWriter:
    """The part that the writers of chat chunks and of text chunks share."""

    def __init__(
        self, chunks: Chunks, index: int, token_ids: list[int] | None, prompt_token_ids: list[int] | None
    ) -> None:
        """`token_ids` is where the ids of the tokens arrive, if the client wants them; each chunk takes those."""
        self._chunks = chunks
        self._index = index
        self._token_ids = token_ids
        self._prompt_token_ids = prompt_token_ids
        self._write = chunks.events.writer(index)
        self._logprobs: list[TokenLogprob] = []

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self._logprobs += tokens

    def _take_token_ids(self) -> str:
        """Take the field with the token ids since the last chunk."""
        if self._token_ids is None:
            return ""
        field = f',"token_ids":{_json.encode(self._token_ids).decode()}'
        self._token_ids.clear()
        return field

    def _take_prompt_token_ids(self) -> str:
        """Take the field with the prompt's token ids, for the first chunk."""
        if self._prompt_token_ids is None:
            return ""
        field = f',"prompt_token_ids":{_json.encode(self._prompt_token_ids).decode()}'
        self._prompt_token_ids = None
        return field

    def _tail(self) -> str:
        chunks = self._chunks
        return chunks.usage_tail(chunks.usage_of(self._index)) if chunks.continuous_usage else chunks.tail

    def fail(self, error: DynamoException) -> None:
        self._chunks.failed(error)


class ChatChoiceWriter(_ChoiceWriter):
    """One choice of a streamed chat."""

    def __init__(
        self,
        chunks: Chunks,
        index: int,
        *,
        reasoning_field: str = "reasoning_content",
        token_ids: list[int] | None = None,
        prompt_token_ids: list[int] | None = None,
        custom_tools: Collection[str] = (),
    ) -> None:
        """The calls of `custom_tools` have text instead of arguments."""
        super().__init__(chunks, index, token_ids, prompt_token_ids)
        self._custom_tools = custom_tools
        self._custom_call = False
        self._begun = False
        self._only_text_changes = False
        self._delta = f'{chunks.head}{{"index":{index},"delta":'
        self._open = self._delta + '{"content":"'
        self._close = f'"}},"logprobs":null,"finish_reason":null}}{chunks.tail}'
        self._reasoning_field = reasoning_field

    def escaped(self, text: str) -> None:
        if self._only_text_changes and not self._logprobs:
            self._write((self._open + text + self._close).encode())
        else:
            self._chunk(f'{{"content":"{text}"}}')

    def text(self, text: str) -> None:
        self.escaped(json_escaped(text))

    def reasoning(self, text: str) -> None:
        self._chunk(f'{{"{self._reasoning_field}":"{json_escaped(text)}"}}')

    def tool_start(self, index: int, id: str, name: str) -> None:
        self._custom_call = name in self._custom_tools
        kind, field = ("custom", "input") if self._custom_call else ("function", "arguments")
        called = f'{{"name":"{json_escaped(name)}","{field}":""}}'
        call = f'{{"index":{index},"id":"{json_escaped(id)}","type":"{kind}","{kind}":{called}}}'
        self._chunk(f'{{"tool_calls":[{call}]}}')

    def tool_arguments(self, index: int, fragment: str) -> None:
        kind, field = ("custom", "input") if self._custom_call else ("function", "arguments")
        call = f'{{"index":{index},"{kind}":{{"{field}":"{json_escaped(fragment)}"}}}}'
        self._chunk(f'{{"tool_calls":[{call}]}}')

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """A chat answer has no field for them."""

    def _chunk(self, delta: str) -> None:
        before = "" if self._begun else self._begin()
        self._write((before + self._one(delta, "null")).encode())

    def _begin(self) -> str:
        self._begun = True
        self._only_text_changes = not self._chunks.continuous_usage and self._token_ids is None
        role = f'{self._delta}{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]'
        return role + self._take_prompt_token_ids() + self._tail().removeprefix("]")

    def _one(self, delta: str, finish: str) -> str:
        logprobs = "null"
        if self._logprobs:
            chunks = self._chunks
            assert chunks.tokenizer
            logprobs = _json.encode(chat_logprobs(chunks.tokenizer, self._logprobs, chunks.top_logprobs)).decode()
            self._logprobs = []
        ids = self._take_token_ids()
        return f'{self._delta}{delta},"logprobs":{logprobs},"finish_reason":{finish}{ids}}}{self._tail()}'

    def finish(self, finish: Finish) -> None:
        before = "" if self._begun else self._begin()
        self._chunks.finished(self._index, finish, before + self._one("{}", f'"{finish.reason}"'))


class TextChoiceWriter(_ChoiceWriter):
    """One choice of a streamed completion, which may begin with its prompt."""

    def __init__(
        self,
        chunks: Chunks,
        index: int,
        *,
        echo: str = "",
        echoed: list[TokenLogprob] | None = None,
        token_ids: list[int] | None = None,
        prompt_token_ids: list[int] | None = None,
    ) -> None:
        """`echoed` are the prompt's tokens, if the client wants their log probabilities."""
        super().__init__(chunks, index, token_ids, prompt_token_ids)
        self._only_text_changes = not chunks.continuous_usage and token_ids is None
        self._logprobs = echoed or []
        self._wants_prompt = echoed is not None
        self._offset = 0 if self._wants_prompt else len(echo)
        self._echo = json_escaped(echo)
        self._open = f'{chunks.head}{{"index":{index},"text":"'
        self._close = f'","logprobs":null,"finish_reason":null}}{chunks.tail}'

    def escaped(self, text: str) -> None:
        if self._only_text_changes and not (self._echo or self._logprobs):
            self._write((self._open + text + self._close).encode())
        else:
            self._write(self._one(text, "null").encode())

    def text(self, text: str) -> None:
        self.escaped(json_escaped(text))

    def reasoning(self, text: str) -> None:
        self.text(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        raise AssertionError("completions are not parsed for tool calls")

    def tool_arguments(self, index: int, fragment: str) -> None:
        raise AssertionError("completions are not parsed for tool calls")

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        if self._wants_prompt and self._echo:
            self._logprobs = tokens

    def _one(self, text: str, finish: str) -> str:
        text, self._echo = self._echo + text, ""
        logprobs = "null"
        if self._logprobs:
            chunks = self._chunks
            assert chunks.tokenizer
            shown = text_logprobs(chunks.tokenizer, self._logprobs, chunks.top_logprobs, self._offset)
            self._offset += sum(map(len, shown.tokens))
            logprobs = _json.encode(shown).decode()
            self._logprobs = []
        ids = self._take_token_ids() + self._take_prompt_token_ids()
        return f'{self._open}{text}","logprobs":{logprobs},"finish_reason":{finish}{ids}}}{self._tail()}'

    def finish(self, finish: Finish) -> None:
        self._chunks.finished(self._index, finish, self._one("", f'"{finish.reason}"'))


def chat_chunks(conversation: Conversation, request_id: str) -> tuple[Chunks, list[ChatChoiceWriter]]:
    """The stream of a chat's answer, and what writes each choice into it."""
    chunks = Chunks(conversation, conversation.request.top_logprobs, request_id)
    ids, prompt_ids = conversation.token_ids, conversation.prompt_token_ids
    return chunks, [
        ChatChoiceWriter(
            chunks,
            index,
            token_ids=ids[index] if ids else None,
            prompt_token_ids=prompt_ids,
            custom_tools=conversation.custom_tools,
        )
        for index in range(conversation.n)
    ]


def text_chunks(completion: Completion, request_id: str) -> tuple[Chunks, list[TextChoiceWriter]]:
    """The stream of a completion's answer, and what writes each choice into it."""
    chunks = Chunks(completion, completion.request.logprobs, request_id)
    ids = completion.token_ids
    return chunks, [
        TextChoiceWriter(
            chunks,
            index,
            echo=completion.echo(index),
            echoed=completion.echoed_logprobs(index),
            token_ids=ids[index] if ids else None,
            prompt_token_ids=completion.prompt_token_ids(index),
        )
        for index in range(completion.choice_count)
    ]
