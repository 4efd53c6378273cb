"""The state of a chat: the model, the conversation, and the options of its requests."""

from __future__ import annotations

from dynamo.cli.chat.options import ChatOptions
from dynamo.cli.chat.transcript import Transcript
from dynamo.protocols.chat import ChatRequest
from dynamo.serving.ask import RequestDefaults
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel


class ChatState:
    def __init__(self, models: Models, model_name: str, defaults: RequestDefaults) -> None:
        self.models = models
        self.model_name = model_name
        self.transcript = Transcript()
        self.options = ChatOptions(defaults)
        self.shows_figures = False

    def model(self) -> ServedModel:
        """Raises DynamoException if it is not served any more."""
        return self.models.get(self.model_name)

    def request(self) -> ChatRequest:
        return self.options.request(self.model_name, self.transcript.messages())

    async def used_tokens(self) -> int | None:
        """The tokens of the conversation as the model reads it; None if the worker has the tokenizer."""
        preprocessor = self.model().preprocessor
        if preprocessor is None:
            return None
        return await preprocessor.count_tokens(self.request()) if self.transcript.messages() else 0

    def context_length(self) -> int | None:
        model = self.model()
        return model.preprocessor.model.context_length if model.preprocessor else model.card.context_length

    async def make_room(self) -> int:
        """Stop sending the oldest exchanges until an answer fits beside the rest; returns how many were left out."""
        context = self.context_length()
        if context is None:
            return 0
        room = self.options.max_tokens or context // 4
        left_out = 0
        while (used := await self.used_tokens()) is not None and used + room > context:
            if not self.transcript.leave_out_oldest():
                break
            left_out += 1
        return left_out
