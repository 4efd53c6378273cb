"""Requests to a model without HTTP: from a terminal, a pipe or a batch."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.pipeline.guidance import tool_finish_reason
from dynamo.pipeline.validate import validate_chat, validate_completion
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.protocols.completions import CompletionRequest
from dynamo.runtime import Context
from dynamo.serving.collect import Listener
from dynamo.serving.completion import Completion
from dynamo.serving.conversation import Conversation
from dynamo.serving.served_model import ServedModel


class RequestDefaults(Struct, frozen=True, kw_only=True):
    """The options of requests for which the user gives only a text."""

    temperature: float | None = None
    max_completion_tokens: int | None = None
    raw: bool = False
    """Show everything the engine produces: no token ends the answer or is hidden."""

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


class Answer(Struct, frozen=True, kw_only=True):
    """A whole answer in the form of the OpenAI API, with the seconds to its first token and to its end."""

    body: dict[str, Any]
    time_to_first_token: float | None
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


async def ask(
    model: ServedModel,
    request: ChatRequest | CompletionRequest,
    listener: Listener | None = None,
    context: Context | None = None,
) -> Answer:
    """Send one request and wait for its answer; raises DynamoException. To stop it, cancel the task that waits."""
    began = time.perf_counter()
    served = _begin(model, request, context or Context())
    try:
        await served.prepare()
        answer = await served.answer(listener)
        first = served.first_output_time
    finally:
        await served.close()
    return Answer(
        body=msgspec.to_builtins(answer),
        time_to_first_token=None if first is None else first - began,
        elapsed=time.perf_counter() - began,
    )


def _begin(model: ServedModel, request: ChatRequest | CompletionRequest, context: Context) -> Conversation | Completion:
    if isinstance(request, ChatRequest):
        validate_chat(request)
        return Conversation(model, request, context, tool_finish_reason=tool_finish_reason(request))
    validate_completion(request)
    return Completion(model, request, context)
