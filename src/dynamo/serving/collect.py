"""Answers that come whole: the same stream, gathered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET

from dynamo.frontend.answers.chunks import add_usage
from dynamo.frontend.answers.sse import unescaped
from dynamo.model import Tokenizer
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.logprobs import chat_logprobs, text_logprobs
from dynamo.protocols import openai_answers as answers
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.openai_answers import CompletionUsage
from dynamo.protocols.openai_chat import FunctionCall, ToolCall


class Collected:
    """One choice, complete when `finish` was told."""

    def __init__(self, whole: Whole, index: int) -> None:
        self._whole = whole
        self._index = index
        self.content: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.tokens: list[TokenLogprob] = []
        self.prompt_tokens: list[TokenLogprob] = []
        self.finished: Finish | None = None

    def begin(self, so_far: Callable[[], Usage]) -> None:
        pass

    def escaped(self, text: str) -> None:
        self.text(unescaped(text))

    def text(self, text: str) -> None:
        self.content.append(text)

    def reasoning(self, text: str) -> None:
        self.thoughts.append(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        self.calls.append(ToolCall(id=id, function=FunctionCall(name)))

    def tool_arguments(self, index: int, fragment: str) -> None:
        self.calls[index].function.arguments += fragment

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self.tokens += tokens

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        self.prompt_tokens = tokens

    def finish(self, finish: Finish) -> None:
        self.finished = finish
        self._whole.one_finished(self._index, finish)

    def fail(self, error: DynamoException) -> None:
        self._whole.failed(error)

    @property
    def likelihood(self) -> float:
        """The mean probability of its tokens, as a logarithm: what `best_of` ranks by."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")


class Whole:
    """All choices of one answer; `done` waits for the last of them or raises what went wrong."""

    def __init__(self, choices: int, per_prompt: int = 1, make: Callable[[Whole, int], Collected] = Collected) -> None:
        """`per_prompt` of the choices share a prompt, which is paid for once."""
        self.usage = Usage()
        self.choices = [make(self, index) for index in range(choices)]
        self._per_prompt = per_prompt
        self._running = choices
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def stop_reason(self) -> str | int | None:
        return next((one.finished.stop_reason for one in self.choices if one.finished), None)

    def one_finished(self, index: int, finish: Finish) -> None:
        add_usage(self.usage, finish.usage, prompt=index % self._per_prompt == 0)
        self._running -= 1
        if not self._running and not self._done.done():
            self._done.set_result(None)

    def failed(self, error: DynamoException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # where nobody waits any more, nobody needs to be told

    async def done(self) -> None:
        await self._done


def chat_answer(
    whole: Whole,
    *,
    id: str,
    created: int,
    model: str,
    tokenizer: Tokenizer | None,
    top_logprobs: int = 0,
    nvext: dict[str, Any] | None = None,
) -> answers.ChatCompletion:
    return answers.ChatCompletion(
        id=id,
        created=created,
        model=model,
        choices=[_chat_choice(index, choice, tokenizer, top_logprobs) for index, choice in enumerate(whole.choices)],
        usage=CompletionUsage.of(whole.usage),
        nvext=nvext or UNSET,
    )


def _chat_choice(index: int, choice: Collected, tokenizer: Tokenizer | None, top: int) -> answers.ChatChoice:
    assert choice.finished
    content = "".join(choice.content)
    message = answers.AnswerMessage(content=content if content or not choice.calls else None)
    if choice.thoughts:
        message.reasoning_content = "".join(choice.thoughts)
    if choice.calls:
        message.tool_calls = choice.calls
    return answers.ChatChoice(
        index=index,
        message=message,
        logprobs=chat_logprobs(tokenizer, choice.tokens, top) if tokenizer and choice.tokens else None,
        finish_reason=choice.finished.reason,  # type: ignore[arg-type]  # one of the four by construction
    )


def text_answer(
    choices: Sequence[Collected],
    usage: Usage,
    *,
    id: str,
    created: int,
    model: str,
    tokenizer: Tokenizer,
    echo: Sequence[str],
    logprobs: int | None = None,
    nvext: dict[str, Any] | None = None,
) -> answers.TextCompletion:
    """`echo` is what each choice begins with; `logprobs` None hides what was only asked for to rank them."""
    told = []
    for index, (choice, echoed) in enumerate(zip(choices, echo, strict=True)):
        assert choice.finished
        tokens = choice.prompt_tokens + choice.tokens if echoed else choice.tokens
        offset = 0 if choice.prompt_tokens else len(echoed)
        shown = tokens and logprobs is not None
        told.append(
            answers.TextChoice(
                index=index,
                text=echoed + "".join(choice.content),
                logprobs=text_logprobs(tokenizer, tokens, logprobs or 0, offset) if shown else None,
                finish_reason=choice.finished.reason,  # type: ignore[arg-type]  # one of the three by construction
            )
        )
    return answers.TextCompletion(
        id=id, created=created, model=model, choices=told, usage=CompletionUsage.of(usage), nvext=nvext or UNSET
    )
