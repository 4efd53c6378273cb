"""Ask a model without HTTP: the same pipeline, heard by a program instead of a socket."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from dynamo.frontend.routes.completions import echo, gather_best
from dynamo.pipeline.guidance import tool_finish_reason
from dynamo.pipeline.preprocess import refuse_guidance
from dynamo.pipeline.validate import validate_chat, validate_completion
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.openai_chat import ChatRequest, Message
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.runtime import Context
from dynamo.serving.collect import Collected, Whole, chat_answer, text_answer
from dynamo.serving.generation import Generation
from dynamo.serving.models import ServedModel
from dynamo.serving.relay import RelayedAnswer


class Listener(Protocol):
    """Who hears an answer while it comes."""

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...


class RequestDefaults(Struct, frozen=True, kw_only=True):
    """How to word a request of which only the text is known."""

    temperature: float | None = None
    max_completion_tokens: int | None = None
    raw: bool = False
    """Show all that the engine says: no token ends the answer or is left out of it."""

    def chat(self, model: str, messages: list[Message]) -> ChatRequest:
        return ChatRequest(
            model=model,
            messages=messages,
            stream=True,
            temperature=self.temperature,
            max_completion_tokens=self.max_completion_tokens,
            ignore_eos=True if self.raw else None,
            skip_special_tokens=False if self.raw else None,
        )


class NoListener:
    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.first: float | None = None

    def heard(self) -> None:
        if self.first is None:
            self.first = self.elapsed()

    def elapsed(self) -> float:
        return time.perf_counter() - self._began


class Answer(Struct, frozen=True, kw_only=True):
    """A whole answer as the OpenAI API words it, and how long it took, in seconds."""

    body: dict[str, Any]
    first: float | None
    elapsed: float

    @property
    def text(self) -> str:
        return self._message.get("content") or self._choice.get("text") or ""

    @property
    def reasoning(self) -> str:
        return self._message.get("reasoning_content") or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return self._message.get("tool_calls") or []

    @property
    def finish_reason(self) -> str | None:
        return self._choice.get("finish_reason")

    @property
    def tokens_in(self) -> int:
        return int((self.body.get("usage") or {}).get("prompt_tokens") or 0)

    @property
    def tokens_out(self) -> int:
        return int((self.body.get("usage") or {}).get("completion_tokens") or 0)

    @property
    def _choice(self) -> dict[str, Any]:
        return next(iter(self.body.get("choices") or ()), {})

    @property
    def _message(self) -> dict[str, Any]:
        return self._choice.get("message") or {}


async def ask(model: ServedModel, asked: ChatRequest | CompletionRequest, listener: Listener | None = None) -> Answer:
    """Send one request and wait for its answer; raises DynamoException. To stop it, cancel the task that waits."""
    chat = isinstance(asked, ChatRequest)
    if isinstance(asked, ChatRequest):
        validate_chat(asked)
    else:
        validate_completion(asked)
    if not model.card.type & (ModelType.Chat if chat else ModelType.Completions):
        raise InvalidRequest(f"The model '{model.name}' offers only: {', '.join(model.card.type.names())}.", "model")
    context = Context(str(uuid.uuid4()))
    generation = Generation(model, context)
    watch = Stopwatch()
    listener = listener or NoListener()
    try:
        if model.preprocessor is None:
            refuse_guidance(model.card, asked)
            relayed = _Relayed(listener, watch)
            await generation.relay(msgspec.to_builtins(asked), relayed)
            body = await relayed.answer()
        elif isinstance(asked, ChatRequest):
            body = await _chat(model, asked, generation, listener, watch)
        else:
            body = await _text(model, asked, generation, listener, watch)
    finally:
        await generation.close()
    return Answer(body=body, first=watch.first, elapsed=watch.elapsed())


async def _chat(
    model: ServedModel, asked: ChatRequest, generation: Generation, listener: Listener, watch: Stopwatch
) -> dict[str, Any]:
    assert model.preprocessor
    prepared = await model.preprocessor.chat(asked)
    n = asked.n or 1
    whole = Whole(n, n, _hearing(listener, watch))
    for index, choice in enumerate(whole.choices):
        await generation.add(prepared.choice(index), choice, asked, tool_finish_reason(asked))
    await whole.done()
    tokenizer = model.preprocessor.model.tokenizer
    id, now = f"chatcmpl-{uuid.uuid4()}", int(time.time())
    top = asked.top_logprobs or 0
    return _builtins(chat_answer(whole, id=id, created=now, model=model.name, tokenizer=tokenizer, top_logprobs=top))


async def _text(
    model: ServedModel, asked: CompletionRequest, generation: Generation, listener: Listener, watch: Stopwatch
) -> dict[str, Any]:
    assert model.preprocessor
    prompts = await model.preprocessor.completion(asked)
    tokenizer = model.preprocessor.model.tokenizer
    whole, best = await gather_best(generation, asked, prompts, _hearing(listener, watch))
    answer = text_answer(
        best,
        whole.usage,
        id=f"cmpl-{uuid.uuid4()}",
        created=int(time.time()),
        model=model.name,
        tokenizer=tokenizer,
        echo=[echo(asked, one, tokenizer) for one in prompts for _ in range(asked.n or 1)],
        logprobs=asked.logprobs,
    )
    return _builtins(answer)


def _builtins(answer: object) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(answer)
    return body


def _hearing(listener: Listener, watch: Stopwatch) -> Callable[[Whole, int], Collected]:
    """Of several choices the first is heard while it comes."""
    return lambda whole, index: _Heard(whole, index, NoListener() if index else listener, watch)


class _Heard(Collected):
    """A choice that is told while it is gathered."""

    def __init__(self, whole: Whole, index: int, listener: Listener, watch: Stopwatch) -> None:
        super().__init__(whole, index)
        self._listener = listener
        self._watch = watch

    def text(self, text: str) -> None:
        self._watch.heard()
        super().text(text)
        self._listener.text(text)

    def reasoning(self, text: str) -> None:
        self._watch.heard()
        super().reasoning(text)
        self._listener.reasoning(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        self._watch.heard()
        super().tool_start(index, id, name)


class _Relayed(RelayedAnswer):
    """A worker's own chunks, told while they are folded."""

    def __init__(self, listener: Listener, watch: Stopwatch) -> None:
        super().__init__()
        self._listener = listener
        self._watch = watch

    def item(self, value: Any) -> None:
        super().item(value)
        for part in (value.get("choices") if isinstance(value, dict) else None) or ():
            if not isinstance(part, dict) or part.get("index"):
                continue
            delta = part.get("delta") or part.get("message") or {}
            thought, text = delta.get("reasoning_content"), delta.get("content") or part.get("text")
            if isinstance(thought, str) and thought:
                self._watch.heard()
                self._listener.reasoning(thought)
            if isinstance(text, str) and text:
                self._watch.heard()
                self._listener.text(text)
