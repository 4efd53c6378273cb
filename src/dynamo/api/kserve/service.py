"""The calls of the protocol, over the models that are served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from dynamo import __version__
from dynamo.api.kserve import messages
from dynamo.api.kserve.descriptions import model_config, model_metadata
from dynamo.api.kserve.messages import FINAL
from dynamo.api.kserve.streams import ItemStream, TextStream
from dynamo.api.kserve.tensor_models import TensorInference, tensor_request, tensor_response
from dynamo.api.kserve.text_models import completion_request, infer_response
from dynamo.api.protobuf import Message
from dynamo.api.route import Access
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import DynamoException, InvalidRequest, ProtocolError
from dynamo.runtime import Context
from dynamo.serving.completion import Completion
from dynamo.serving.models import Models
from dynamo.serving.observer import RequestObserver
from dynamo.serving.served_model import ServedModel


class GrpcCall(Struct):
    """One inference: its context, who measures it, and the names of parameters that were ignored."""

    context: Context
    observer: RequestObserver | None
    ignored: list[str]


class Service:
    """Every method raises DynamoException for what it cannot do."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def server_live(self, request: Message) -> Message:
        return messages.ServerLiveResponse(live=True)

    def server_ready(self, request: Message) -> Message:
        return messages.ServerReadyResponse(ready=bool(self._models.served()))

    def server_metadata(self, request: Message) -> Message:
        return messages.ServerMetadataResponse(name="dynamo", version=__version__, extensions=["model_configuration"])

    def model_ready(self, request: Message) -> Message:
        return messages.ModelReadyResponse(ready=self._models.readiness().get(request.name, False))

    def model_metadata(self, request: Message) -> Message:
        return model_metadata(self._models.get(request.name).card)

    def model_config(self, request: Message) -> Message:
        return messages.ModelConfigResponse(config=model_config(self._models.get(request.name).card))

    async def infer(self, request: Message, call: GrpcCall) -> Message:
        """One request, one response."""
        model = self._models.get(request.model_name)
        if model.card.type & ModelType.TensorBased:
            (response,) = [part async for part in self._only(self._tensors(model, request, call))]
            return response
        completion = self._completion(model, request, call)
        try:
            if completion.request.stream:
                raise InvalidRequest.bad_value("streaming", "needs ModelStreamInfer")
            return await self._whole(completion, request)
        finally:
            await completion.close()

    async def stream(self, request: Message, call: GrpcCall) -> AsyncIterator[Message]:
        """The responses to one request of a stream; the last is marked as such where that is known."""
        model = self._models.get(request.model_name)
        if model.card.type & ModelType.TensorBased:
            async for response in self._tensors(model, request, call):
                yield response
            return
        completion = self._completion(model, request, call)
        try:
            if not completion.request.stream:
                response = await self._whole(completion, request)
                response.parameters[FINAL].bool_param = True
                yield response
                return
            await completion.prepare()
            texts = self._relayed(completion, request) if completion.takes_text else self._texts(completion, request)
            async for response in texts:
                yield response
        finally:
            await completion.close()

    def _completion(self, model: ServedModel, request: Message, call: GrpcCall) -> Completion:
        return Completion(model, completion_request(request, call.ignored), call.context, call.observer)

    async def _whole(self, completion: Completion, request: Message) -> Message:
        await completion.prepare()
        answer = msgspec.to_builtins(await completion.answer())
        return _with_choices(request, answer.get("choices"))

    async def _texts(self, completion: Completion, request: Message) -> AsyncIterator[Message]:
        stream = TextStream(completion.choice_count)
        await completion.send([stream.choice(index) for index in range(completion.choice_count)])
        async for part in stream.parts():
            response = infer_response(request, part.texts, part.reasons)
            response.parameters[FINAL].bool_param = part.is_last
            yield response

    async def _relayed(self, completion: Completion, request: Message) -> AsyncIterator[Message]:
        """The chunks of a worker that takes text; it does not say in advance which is the last."""
        stream = ItemStream(partial(_chunk, request))
        await completion.relay(stream)
        async for response in stream.responses():
            yield response

    async def _tensors(self, model: ServedModel, request: Message, call: GrpcCall) -> AsyncIterator[Message]:
        inference = TensorInference(model, tensor_request(request), call.context, call.observer)
        try:
            stream = ItemStream(partial(tensor_response, request))
            await inference.relay(stream)
            async for response in stream.responses():
                yield response
        finally:
            await inference.close()

    async def _only(self, responses: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """The one response there must be."""
        count = 0
        async for response in responses:
            count += 1
            if count > 1:
                raise InvalidRequest(
                    "The model answered with several responses, which needs ModelStreamInfer.", "model_name"
                )
            yield response
        if not count:
            raise ProtocolError("the model ended without a response")


class RpcRoute(Struct, frozen=True):
    """One call of the protocol, as an `HttpRoute` is one of HTTP."""

    method: str
    access: Access = Access.KEY
    endpoint: str | None = None
    """The call runs a model: its requests are counted under this label, traced and limited."""
    streams: bool = False


DESCRIPTIONS: dict[RpcRoute, Callable[[Service, Message], Message]] = {
    RpcRoute("ServerLive", Access.PROBE): Service.server_live,
    RpcRoute("ServerReady", Access.PROBE): Service.server_ready,
    RpcRoute("ServerMetadata"): Service.server_metadata,
    RpcRoute("ModelReady"): Service.model_ready,
    RpcRoute("ModelMetadata"): Service.model_metadata,
    RpcRoute("ModelConfig"): Service.model_config,
}
"""The calls that run no model, and their answers."""
INFER = RpcRoute("ModelInfer", endpoint="completions")
STREAM_INFER = RpcRoute("ModelStreamInfer", endpoint="completions", streams=True)


def _chunk(request: Message, item: Any) -> Message | None:
    if not isinstance(item, dict):
        raise ProtocolError("a worker's item is not a completion chunk")
    return _with_choices(request, item["choices"]) if item.get("choices") else None


def _with_choices(request: Message, choices: Any) -> Message:
    """One element per choice of a completion or of a chunk."""
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ProtocolError("a worker's answer has no list of choices")
    texts = [str(choice.get("text") or "") for choice in choices]
    return infer_response(request, texts, [str(choice.get("finish_reason") or "") for choice in choices])


def error_response(error: DynamoException) -> Any:
    return messages.ModelStreamInferResponse(error_message=error.public_message)
