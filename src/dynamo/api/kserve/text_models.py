"""Text models: a prompt in the input `text_input`, the answer in `text_output` and `finish_reason`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dynamo.api.kserve import messages
from dynamo.api.kserve.datatypes import BY_DATATYPE, add_output, element_count, input_values
from dynamo.api.kserve.messages import plain_parameters
from dynamo.api.protobuf import Message
from dynamo.pipeline.validate import validate_completion
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.errors import InvalidRequest

INPUTS = (("text_input", "BYTES", [1], False), ("streaming", "BOOL", [1], True))
OUTPUTS = (("text_output", "BYTES", [-1]), ("finish_reason", "BYTES", [-1]))
_FOR_TRITON = ("sequence_id", "sequence_start", "sequence_end", "timeout", "binary_data_output")
"""What Triton's clients send by themselves. It means nothing here, nor does what begins with `triton_`."""
_decoder = BodyDecoder(CompletionRequest)


def completion_request(request: Message, ignored: list[str]) -> CompletionRequest:
    """As a completions request. Parameters are its other fields; names that it does not know go to `ignored`."""
    inputs: dict[str, Any] = {}
    for index, tensor in enumerate(request.inputs):
        inputs[tensor.name] = _input(request, index)
    if "text_input" not in inputs:
        raise InvalidRequest.missing("text_input")
    given = plain_parameters(request.parameters)
    fields = {name: value for name, value in given.items() if not _is_for_triton(name)}
    stream = inputs.get("streaming", inputs.get("stream", False))
    fields |= {"model": request.model_name, "prompt": inputs["text_input"], "stream": stream}
    completion = _decoder.decode(msgspec.json.encode(fields), ignored)
    validate_completion(completion)
    return completion


def _is_for_triton(name: str) -> bool:
    return name.startswith("triton_") or name in _FOR_TRITON


def _input(request: Message, index: int) -> str | bool:
    tensor = request.inputs[index]
    expected = {"text_input": "BYTES", "streaming": "BOOL", "stream": "BOOL"}.get(tensor.name)
    if expected is None:
        raise InvalidRequest.bad_value(tensor.name[:64], "is not an input; there are `text_input` and `streaming`")
    if tensor.datatype != expected:
        raise InvalidRequest.bad_value(tensor.name, f"datatype must be {expected}, not {tensor.datatype[:32]!r}")
    if element_count(tensor.shape, tensor.name) != 1 or list(tensor.shape) not in ([1], [1, 1]):
        raise InvalidRequest.bad_value(tensor.name, f"shape must be [1], not {list(tensor.shape)}")
    (value,) = input_values(request, index)
    if isinstance(value, bool):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidRequest.bad_value(tensor.name, "must be UTF-8") from None


def infer_response(request: Message, texts: Sequence[str], reasons: Sequence[str]) -> Message:
    """One element per choice; raw if the request was."""
    response = messages.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name, values in (("text_output", texts), ("finish_reason", reasons)):
        add_output(response, name, BY_DATATYPE["BYTES"], [len(values)], [value.encode() for value in values], request)
    return response
