"""Tensor models: a worker gets and gives tensors as dicts."""

from __future__ import annotations

from typing import Any

from msgspec import ValidationError, convert, to_builtins

from dynamo.api.kserve import messages
from dynamo.api.kserve.datatypes import BY_NAME, add_output, datatype_of, element_count, input_values
from dynamo.api.kserve.messages import fill_parameters, tagged_parameters
from dynamo.api.protobuf import Message
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import ProtocolError
from dynamo.protocols.tensors import Tensor, TensorData, TensorMetadata, TensorRequest, TensorResponse
from dynamo.serving.request import ModelRequest


class TensorInference(ModelRequest[TensorRequest]):
    """One inference of a tensor model; send it with `relay`."""

    model_type = ModelType.TensorBased

    def _relayed_body(self) -> dict[str, Any]:
        body: dict[str, Any] = to_builtins(self.request, builtin_types=(bytes,))
        del body["nvext"]
        return body


def tensor_request(request: Message) -> TensorRequest:
    return TensorRequest(
        id=request.id or None,
        model=request.model_name,
        tensors=[_tensor(request, index) for index in range(len(request.inputs))],
        parameters=tagged_parameters(request.parameters),
    )


def _tensor(request: Message, index: int) -> Tensor:
    tensor = request.inputs[index]
    kind = datatype_of(tensor).name
    given = tagged_parameters(tensor.parameters)
    metadata = TensorMetadata(name=tensor.name, data_type=kind, shape=list(tensor.shape), parameters=given)
    return Tensor(metadata=metadata, data=TensorData(data_type=kind, values=input_values(request, index)))


def tensor_response(request: Message, item: Any) -> Message:
    """A worker's item as a response, raw if the request was; raises ProtocolError for what is not one."""
    try:
        answer = convert(item, TensorResponse)
        response = messages.ModelInferResponse(
            model_name=answer.model or request.model_name, model_version="1", id=request.id
        )
        fill_parameters(response.parameters, answer.parameters)
        for tensor in answer.tensors:
            _add(response, tensor, request)
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"a worker's item is not a tensor response: {error}") from None
    return response


def _add(response: Message, tensor: Tensor, request: Message) -> None:
    metadata, data = tensor.metadata, tensor.data
    kind = BY_NAME.get(metadata.data_type)
    if kind is None or data.data_type != metadata.data_type:
        raise ValueError(f"tensor {metadata.name!r} has the types {metadata.data_type!r} and {data.data_type!r}")
    values = [bytes(_text(each)) for each in data.values] if kind.name == "Bytes" else data.values
    if len(values) != element_count(metadata.shape, metadata.name):
        raise ValueError(f"tensor {metadata.name!r} has {len(values)} values for shape {metadata.shape}")
    output = add_output(response, metadata.name, kind, metadata.shape, values, request)
    fill_parameters(output.parameters, metadata.parameters)


def _text(value: Any) -> Any:
    """A byte string may also be a text or a list of its bytes."""
    return value.encode() if isinstance(value, str) else value
