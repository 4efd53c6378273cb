"""Answers that come whole: the same stream, gathered."""

from __future__ import annotations

import asyncio

import msgspec

from dynamo.frontend.chunks import add_usage
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

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self.content: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.tokens: list[TokenLogprob] = []
        self.finished: Finish | None = None

    def escaped(self, text: str) -> None:
        self.text(msgspec.json.decode(f'"{text}"', type=str))

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

    def finish(self, finish: Finish) -> None:
        self.finished = finish
        self._whole.one_finished(finish)

    def fail(self, error: DynamoException) -> None:
        self._whole.failed(error)


class Whole:
    """All choices of one answer; `done` waits for the last of them or raises what went wrong."""

    def __init__(self, choices: int) -> None:
        self.usage = Usage()
        self.choices = [Collected(self) for _ in range(choices)]
        self._running = choices
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_finished(self, finish: Finish) -> None:
        add_usage(self.usage, finish.usage)
        self._running -= 1
        if not self._running and not self._done.done():
            self._done.set_result(None)

    def failed(self, error: DynamoException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def done(self) -> None:
        await self._done


def chat_answer(whole: Whole, *, id: str, created: int, model: str, tokenizer: Tokenizer) -> answers.ChatCompletion:
    return answers.ChatCompletion(
        id=id,
        created=created,
        model=model,
        choices=[_chat_choice(index, choice, tokenizer) for index, choice in enumerate(whole.choices)],
        usage=CompletionUsage.of(whole.usage),
    )


def _chat_choice(index: int, choice: Collected, tokenizer: Tokenizer) -> answers.ChatChoice:
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
        logprobs=chat_logprobs(tokenizer, choice.tokens) if choice.tokens else None,
        finish_reason=choice.finished.reason,  # type: ignore[arg-type]  # one of the four by construction
    )


def text_answer(
    whole: Whole, *, id: str, created: int, model: str, tokenizer: Tokenizer, echo: list[str]
) -> answers.TextCompletion:
    return answers.TextCompletion(
        id=id,
        created=created,
        model=model,
        choices=[
            answers.TextChoice(
                index=index,
                text=echoed + "".join(choice.content),
                logprobs=text_logprobs(tokenizer, choice.tokens, len(echoed)) if choice.tokens else None,
                finish_reason=choice.finished.reason if choice.finished else "stop",  # type: ignore[arg-type]
            )
            for index, (choice, echoed) in enumerate(zip(whole.choices, echo, strict=True))
        ],
        usage=CompletionUsage.of(whole.usage),
    )
