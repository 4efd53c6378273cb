"""A chat request: over HTTP in any of three APIs, from a terminal, or as a line of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from dynamo.model import Tokenizer
from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.custom_tools import CustomInputs, as_functions, custom_tools
from dynamo.pipeline.preprocess import reject_guidance
from dynamo.protocols.answers import ChatCompletion
from dynamo.protocols.card import ModelType
from dynamo.protocols.chat import AudioPart, ChatRequest, ImagePart, Message
from dynamo.runtime import Context
from dynamo.serving.collect import CollectedResponse, Listener, chat_completion
from dynamo.serving.observer import RequestObserver
from dynamo.serving.relay import RelayedChoice
from dynamo.serving.request import ModelRequest
from dynamo.serving.resumable import ResumableStream
from dynamo.serving.served_model import ServedModel


class Conversation(ModelRequest[ChatRequest]):
    """Call `prepare`, then either `send` with your own sinks or `answer` for the whole answer."""

    model_type = ModelType.Chat
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        model: ServedModel,
        request: ChatRequest,
        context: Context,
        observer: RequestObserver | None = None,
        body: bytes | bytearray | None = None,
        *,
        tool_finish_reason: str = "tool_calls",
        stream: ResumableStream | None = None,
    ) -> None:
        """`tool_finish_reason` is the finish reason of an answer that ends with tool calls."""
        super().__init__(model, request, context, observer, body, stream)
        self.n = self.choice_count = request.n or 1
        self._tool_finish_reason = tool_finish_reason
        self.token_ids: list[list[int]] | None = [[] for _ in range(self.n)] if request.return_token_ids else None
        """The ids of the tokens of each choice, as they are generated, if the client wants them."""
        self.custom_tools = custom_tools(request)
        """The names of the tools whose calls have text instead of arguments."""

    async def _prepare(self) -> None:
        preprocessor = self.model.preprocessor
        if preprocessor is None:
            reject_guidance(self.model.card, self.request)
            if self._observer:
                self._observer.attached(*media_counts(self.request.messages))
        else:
            self.prepared = await preprocessor.chat(self.request)
            session = self.context.session
            if self._observer and session and session.named:
                decode = partial(preprocessor.model.tokenizer.decode, skip_special_tokens=False)
                self._observer.prepared(session, self.prepared.request.token_ids, decode)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.preprocessor.model.tokenizer if self.model.preprocessor else None

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """The ids of the prompt's tokens, if the client wants them."""
        return list(self.prepared.request.token_ids) if self.prepared and self.request.return_token_ids else None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prepared.request.token_ids) if self.prepared else 0

    async def send(self, choices: Sequence[ChoiceSink]) -> None:
        if self.custom_tools:
            choices = [CustomInputs(choice, self.custom_tools) for choice in choices]
        if self.prepared is None:
            request = {**msgspec.to_builtins(self.request), "stream": True, "stream_options": {"include_usage": True}}
            if self.custom_tools:
                request["tools"] = msgspec.to_builtins(as_functions(self.request.tools or ()))
            await self._deliver(request, self._next_context(), RelayedChoice(choices[0], self.worker_name))
            return
        for index, choice in enumerate(choices):
            ids = self.token_ids[index] if self.token_ids else None
            prepared = self.prepared.choice(index)
            await self._add_choice(prepared, choice, self.request, self._tool_finish_reason, ids)

    async def answer(self, listener: Listener | None = None) -> ChatCompletion | dict[str, Any]:
        """The whole answer in the form of OpenAI's API; workers that take text produce that form themselves."""
        if self.prepared is None:
            return await self.relayed_answer(listener)
        return self.completion(await self.collect(listener))

    async def collect(self, listener: Listener | None = None) -> CollectedResponse:
        collected = CollectedResponse(self.n, self.n, listener, self.token_ids, self.custom_tools)
        await self.send(collected.choices)
        await collected.done()
        return collected

    def completion(self, collected: CollectedResponse) -> ChatCompletion:
        return chat_completion(
            collected,
            id=self.id,
            created=self.created,
            model=self.model.name,
            tokenizer=self.tokenizer,
            top_logprobs=self.request.top_logprobs or 0,
            prompt_token_ids=self.prompt_token_ids,
            nvext=self.nvext(collected.stop_reason),
        )


def media_counts(messages: Sequence[Message]) -> tuple[int, int]:
    """Images and recordings in all messages."""
    kinds = Counter(type(part) for each in messages if isinstance(each.content, list) for part in each.content)
    return kinds[ImagePart], kinds[AudioPart]
