"""A chat on its way, whichever API it was asked for in: chat completions, Responses or Messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dynamo.frontend.answers.nvext import Extras, with_headers
from dynamo.frontend.measure.exchange import EXCHANGE
from dynamo.model import Tokenizer
from dynamo.pipeline.choice import ChoiceSink
from dynamo.pipeline.preprocess import Prepared, refuse_guidance
from dynamo.protocols.card import ModelType
from dynamo.protocols.openai_answers import ChatCompletion
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.serving.collect import Whole, chat_answer
from dynamo.serving.generation import Generation
from dynamo.serving.relay import RelayedChoice

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


class Conversation:
    """Prepared for the model that will answer it; sent when there is somebody to listen. Must be closed."""

    def __init__(self, frontend: Frontend, request: web.Request, request_id: str, asked: ChatRequest) -> None:
        """`asked` must have been validated."""
        asked.nvext = with_headers(asked.nvext, request.headers)
        self.asked = asked
        self.model = frontend.model(asked.model, ModelType.Chat)
        self.context = frontend.context(request)
        self.generation = Generation(self.model, self.context, request[EXCHANGE])
        self.extras = Extras(asked.nvext, self.generation)
        self.created = int(time.time())
        self.prepared: Prepared | None = None
        """None for a worker that takes text."""
        self.reason_of_calls = "tool_calls"

    async def prepare(self) -> None:
        if self.model.preprocessor is None:
            refuse_guidance(self.model.card, self.asked)
        else:
            self.prepared = await self.model.preprocessor.chat(self.asked)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.preprocessor.model.tokenizer if self.model.preprocessor else None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prepared.request.token_ids) if self.prepared else 0

    async def send(self, choices: Sequence[ChoiceSink]) -> None:
        if self.prepared is None:
            asked = {**msgspec.to_builtins(self.asked), "stream": True, "stream_options": {"include_usage": True}}
            await self.generation.relay(asked, RelayedChoice(choices[0]))
            return
        for index, choice in enumerate(choices):
            await self.generation.add(self.prepared.choice(index), choice, self.asked, self.reason_of_calls)

    async def whole(self, id: str) -> tuple[ChatCompletion, Whole]:
        n = self.asked.n or 1
        whole = Whole(n, per_prompt=n)
        await self.send(whole.choices)
        await whole.done()
        answer = chat_answer(
            whole,
            id=id,
            created=self.created,
            model=self.model.name,
            tokenizer=self.tokenizer,
            top_logprobs=self.asked.top_logprobs or 0,
            nvext=self.extras.tell(whole.stop_reason),
        )
        return answer, whole

    async def close(self) -> None:
        await self.generation.close()
