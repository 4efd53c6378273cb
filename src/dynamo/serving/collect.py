"""Collects the stream of an answer for a client that wants it whole."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from msgspec import UNSET

from dynamo.model import Tokenizer, json_unescaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.pipeline.logprobs import chat_logprobs, text_logprobs
from dynamo.protocols import answers as answers
from dynamo.protocols.answers import CompletionUsage
from dynamo.protocols.chat import CustomCall, FunctionCall
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException


class Listener(Protocol):
    """Receives the text of the first choice while the answer is collected."""

    def text(self, text: str) -> None: ...

    def reasoning(self, text: str) -> None: ...


class CollectedChoice:
    """One choice, complete when `finished` is set."""

    def __init__(
        self,
        answer: CollectedResponse,
        index: int,
        listener: Listener | None = None,
        token_ids: list[int] | None = None,
        custom_tools: Collection[str] = (),
    ) -> None:
        self._answer: CollectedResponse | None = answer
        self._custom_tools = custom_tools
        self._index = index
        self._listener = listener
        self.content: list[str] = []
        self.reasoning_parts: list[str] = []
        self.calls: list[answers.AnswerToolCall] = []
        self.tokens: list[TokenLogprob] = []
        self.prompt_tokens: list[TokenLogprob] = []
        self.token_ids = token_ids
        self.finished: Finish | None = None

    def escaped(self, text: str) -> None:
        self.text(json_unescaped(text))

    def text(self, text: str) -> None:
        self.content.append(text)
        if self._listener:
            self._listener.text(text)

    def reasoning(self, text: str) -> None:
        self.reasoning_parts.append(text)
        if self._listener:
            self._listener.reasoning(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        custom = name in self._custom_tools
        self.calls.append(
            answers.CustomToolCall(id=id, custom=CustomCall(name))
            if custom
            else answers.FunctionToolCall(id=id, function=FunctionCall(name))
        )

    def tool_arguments(self, index: int, fragment: str) -> None:
        self.calls[index].add(fragment)

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        self.tokens += tokens

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        self.prompt_tokens = tokens

    def finish(self, finish: Finish) -> None:
        self.finished = finish
        if self._answer:
            self._answer.one_finished(self._index, finish)

    def fail(self, error: DynamoException) -> None:
        if self._answer:
            self._answer.failed(error)

    def detach(self) -> None:
        """Drop the answer, which holds its choices: only the garbage collector would free the two together."""
        self._answer = None

    @property
    def likelihood(self) -> float:
        """The mean log probability of its tokens, by which `best_of` ranks."""
        known = [token.logprob for token in self.tokens if token.logprob is not None]
        return sum(known) / len(known) if known else float("-inf")


class CollectedResponse:
    """All choices of one answer; `done` waits for the last one, or raises the error of the first that failed."""

    def __init__(
        self,
        choices: int,
        per_prompt: int = 1,
        listener: Listener | None = None,
        token_ids: Sequence[list[int]] | None = None,
        custom_tools: Collection[str] = (),
    ) -> None:
        """`per_prompt` of the choices share a prompt, whose tokens count once.

        `token_ids` are lists into which the stages before this one write the ids of each choice's tokens.
        """
        self.usage = Usage()
        self.choices = [
            CollectedChoice(
                self, index, None if index else listener, token_ids[index] if token_ids else None, custom_tools
            )
            for index in range(choices)
        ]
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
            self._done.exception()  # marks it as retrieved: the request may have been given up

    async def done(self) -> None:
        try:
            await self._done
        finally:
            for choice in self.choices:
                choice.detach()


def add_usage(total: Usage, part: Usage, *, prompt: bool) -> None:
    """Sum the usage of several choices; `prompt` says whether the prompt of `part` is to be counted."""
    total.completion_tokens += part.completion_tokens
    _add_details(total, part, "completion_tokens_details")
    if prompt:
        total.prompt_tokens += part.prompt_tokens
        _add_details(total, part, "prompt_tokens_details")
    total.total_tokens = total.prompt_tokens + total.completion_tokens


def _add_details(total: Usage, part: Usage, field: str) -> None:
    details = getattr(part, field)
    if details:
        known = getattr(total, field) or {}
        setattr(total, field, {**details, **{k: _plus(v, details.get(k)) for k, v in known.items()}})


def _plus(known: Any, more: Any) -> Any:
    return known + more if isinstance(known, int) and isinstance(more, int) else known


def chat_completion(
    answer: CollectedResponse,
    *,
    id: str,
    created: int,
    model: str,
    tokenizer: Tokenizer | None,
    top_logprobs: int = 0,
    prompt_token_ids: list[int] | None = None,
    nvext: dict[str, Any] | None = None,
) -> answers.ChatCompletion:
    return answers.ChatCompletion(
        id=id,
        created=created,
        model=model,
        choices=[_chat_choice(index, choice, tokenizer, top_logprobs) for index, choice in enumerate(answer.choices)],
        usage=CompletionUsage.of(answer.usage),
        prompt_token_ids=UNSET if prompt_token_ids is None else prompt_token_ids,
        nvext=nvext or UNSET,
    )


def _chat_choice(index: int, choice: CollectedChoice, tokenizer: Tokenizer | None, top: int) -> answers.ChatChoice:
    assert choice.finished
    content = "".join(choice.content)
    message = answers.AnswerMessage(content=content if content or not choice.calls else None)
    if choice.reasoning_parts:
        message.reasoning_content = "".join(choice.reasoning_parts)
    if choice.calls:
        message.tool_calls = choice.calls
    return answers.ChatChoice(
        index=index,
        message=message,
        logprobs=chat_logprobs(tokenizer, choice.tokens, top) if tokenizer and choice.tokens else None,
        finish_reason=choice.finished.reason,  # type: ignore[arg-type]  # one of the four by construction
        token_ids=UNSET if choice.token_ids is None else choice.token_ids,
    )


def text_completion(
    choices: Sequence[CollectedChoice],
    usage: Usage,
    *,
    id: str,
    created: int,
    model: str,
    tokenizer: Tokenizer,
    echo: Sequence[str],
    prompt_token_ids: Sequence[list[int] | None],
    logprobs: int | None = None,
    nvext: dict[str, Any] | None = None,
) -> answers.TextCompletion:
    """`echo` has the text each choice begins with. Log probabilities are shown only with `logprobs`."""
    shown = []
    for index, (choice, echoed, prompt_ids) in enumerate(zip(choices, echo, prompt_token_ids, strict=True)):
        assert choice.finished
        tokens = choice.prompt_tokens + choice.tokens if echoed else choice.tokens
        offset = 0 if choice.prompt_tokens else len(echoed)
        with_logprobs = tokens and logprobs is not None
        shown.append(
            answers.TextChoice(
                index=index,
                text=echoed + "".join(choice.content),
                logprobs=text_logprobs(tokenizer, tokens, logprobs or 0, offset) if with_logprobs else None,
                finish_reason=choice.finished.reason,  # type: ignore[arg-type]  # one of the three by construction
                token_ids=UNSET if choice.token_ids is None else choice.token_ids,
                prompt_token_ids=UNSET if prompt_ids is None else prompt_ids,
            )
        )
    return answers.TextCompletion(
        id=id, created=created, model=model, choices=shown, usage=CompletionUsage.of(usage), nvext=nvext or UNSET
    )
