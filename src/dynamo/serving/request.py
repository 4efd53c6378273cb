"""A request to a model, by whatever entry point: what chats, completions and embeddings have in common."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.protocols.openai_embeddings import EmbeddingRequest
from dynamo.runtime import Context
from dynamo.runtime.stream import Sink
from dynamo.serving.collect import Listener
from dynamo.serving.extra_fields import ExtraFields
from dynamo.serving.generation import Generation
from dynamo.serving.models import ServedModel
from dynamo.serving.observer import RequestObserver
from dynamo.serving.relay import RelayedAnswer

RequestT = TypeVar("RequestT", bound=ChatRequest | CompletionRequest | EmbeddingRequest)


class ServedRequest(Generic[RequestT]):
    """Must be closed, which ends the streams it still has at workers."""

    model_type: ClassVar[ModelType]
    id_prefix: ClassVar[str] = ""
    chunk_object: ClassVar[str] = ""
    """The `object` of the answer's chunks."""

    def __init__(
        self,
        model: ServedModel,
        request: RequestT,
        context: Context,
        observer: RequestObserver | None = None,
        body: bytes | None = None,
    ) -> None:
        """`request` must have been validated. `body` is the client's own JSON: a worker that takes text gets it instead
        of `request`. Raises InvalidRequest if the model does not serve such requests."""
        require_type(model, self.model_type)
        self.model = model
        self.request = request
        self.context = context
        self.generation = Generation(model, context, observer)
        self.extra_fields = ExtraFields(request.nvext, self.generation)
        self.id = f"{self.id_prefix}{context.id()}"
        self.created = int(time.time())
        self._body = body

    @property
    def takes_text(self) -> bool:
        """The workers tokenize the text themselves and answer with OpenAI chunks."""
        return self.model.preprocessor is None

    @property
    def head(self) -> dict[str, Any]:
        """The fields beside `choices` that each chunk of the answer has."""
        return {"id": self.id, "object": self.chunk_object, "created": self.created, "model": self.model.name}

    async def relay(self, sink: Sink) -> None:
        """Send the request to a worker that takes text; its own chunks go to `sink`."""
        await self.generation.relay(self._relayed_body(), sink)

    async def relayed_answer(self, listener: Listener | None) -> dict[str, Any]:
        """The whole answer of a worker that takes text."""
        answer = RelayedAnswer(self.head, self.generation.worker_name, listener)
        await self.relay(answer)
        return await answer.whole()

    def _relayed_body(self) -> dict[str, Any]:
        if self._body is None:
            request: dict[str, Any] = msgspec.to_builtins(self.request)
            return request
        written: dict[str, Any] = msgspec.json.decode(self._body)
        if self.request.nvext is not None:
            written["nvext"] = msgspec.to_builtins(self.request.nvext)
        return written

    async def close(self) -> None:
        await self.generation.close()


def require_type(model: ServedModel, model_type: ModelType) -> None:
    if not model.card.type & model_type:
        wanted, offered = (", ".join(kind.names()) for kind in (model_type, model.card.type))
        raise InvalidRequest(f"The model '{model.name}' does not serve {wanted}; it serves: {offered}.", "model")
