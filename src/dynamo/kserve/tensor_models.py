"""Tensor models: a worker gets and gives tensors as dicts, with ai-dynamo's field names."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, ValidationError, convert

from dynamo.kserve import messages, parameters
from dynamo.kserve.datatypes import BY_NAME, add_output, datatype_of, element_count, input_values
from dynamo.kserve.messages import Message
from dynamo.protocols.errors import ProtocolError


def tensor_request(request: Message) -> dict[str, Any]:
    return {
        "id": request.id or None,
        "model": request.model_name,
        "tensors": [
            {
                "metadata": {
                    "name": tensor.name,
                    "data_type": datatype_of(tensor).name,
                    "shape": list(tensor.shape),
                    "parameters": parameters.tagged(tensor.parameters),
                },
                "data": {"data_type": datatype_of(tensor).name, "values": input_values(request, index)},
            }
            for index, tensor in enumerate(request.inputs)
        ],
        "parameters": parameters.tagged(request.parameters),
    }


class _Metadata(Struct):
    name: str
    data_type: str
    shape: list[int]
    parameters: dict[str, Any] = {}


class _Data(Struct):
    data_type: str
    values: list[Any]


class _Tensor(Struct):
    metadata: _Metadata
    data: _Data


class _Response(Struct):
    tensors: list[_Tensor]
    model: str = ""
    parameters: dict[str, Any] = {}


def tensor_response(request: Message, item: Any) -> Message:
    """A worker's item as a response, raw if the request was; raises ProtocolError for what is not one."""
    try:
        answer = convert(item, _Response)
        response = messages.ModelInferResponse(
            model_name=answer.model or request.model_name, model_version="1", id=request.id
        )
        parameters.fill(response.parameters, answer.parameters)
        for tensor in answer.tensors:
            _add(response, tensor, request)
    except (ValidationError, ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"a worker's item is not a tensor response: {error}") from None
    return response


def _add(response: Message, tensor: _Tensor, request: Message) -> None:
    metadata, data = tensor.metadata, tensor.data
    kind = BY_NAME.get(metadata.data_type)
    if kind is None or data.data_type != metadata.data_type:
        raise ValueError(f"tensor {metadata.name!r} has the types {metadata.data_type!r} and {data.data_type!r}")
    values = [bytes(_text(each)) for each in data.values] if kind.name == "Bytes" else data.values
    if len(values) != element_count(metadata.shape, metadata.name):
        raise ValueError(f"tensor {metadata.name!r} has {len(values)} values for shape {metadata.shape}")
    output = add_output(response, metadata.name, kind, metadata.shape, values, request)
    parameters.fill(output.parameters, metadata.parameters)


def _text(value: Any) -> Any:
    """A byte string may also be a text or a list of its bytes."""
    return value.encode() if isinstance(value, str) else value
