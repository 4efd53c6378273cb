"""The protocol's message classes, from the compiled `inference.proto`, and the named parameters in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.api.protobuf import Message, message_classes

SERVICE = "inference.GRPCInferenceService"

_message = message_classes("dynamo.api.kserve", "inference.binpb", "inference")

ServerLiveRequest = _message("ServerLiveRequest")
ServerLiveResponse = _message("ServerLiveResponse")
ServerReadyRequest = _message("ServerReadyRequest")
ServerReadyResponse = _message("ServerReadyResponse")
ServerMetadataRequest = _message("ServerMetadataRequest")
ServerMetadataResponse = _message("ServerMetadataResponse")
ModelReadyRequest = _message("ModelReadyRequest")
ModelReadyResponse = _message("ModelReadyResponse")
ModelMetadataRequest = _message("ModelMetadataRequest")
ModelMetadataResponse = _message("ModelMetadataResponse")
ModelConfigRequest = _message("ModelConfigRequest")
ModelConfigResponse = _message("ModelConfigResponse")
ModelConfig = _message("ModelConfig")
ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
ModelStreamInferResponse = _message("ModelStreamInferResponse")
InferParameter = _message("InferParameter")

FINAL = "triton_final_response"
"""Marks the last response to a request in a stream."""


def plain_parameters(parameters: Mapping[str, Message]) -> dict[str, Any]:
    """By name, the value alone."""
    return {name: getattr(value, choice) for name, value, choice in _chosen(parameters)}


def tagged_parameters(parameters: Mapping[str, Message]) -> dict[str, dict[str, Any]]:
    """As tensor workers read them: each value under the name of its type."""
    return {
        name: {choice.removesuffix("_param"): getattr(value, choice)} for name, value, choice in _chosen(parameters)
    }


def _chosen(parameters: Mapping[str, Message]) -> list[tuple[str, Message, str]]:
    chosen = [(name, value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()]
    return [each for each in chosen if each[2]]


def fill_parameters(target: Message, given: Any) -> None:
    """Into a message's parameters, from what a tensor worker answers; raises ValueError for what is none."""
    for name, value in (given or {}).items():
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueError(f"parameter {name!r} must be like {{'int64': 3}}, not {value!r}")
        ((kind, content),) = value.items()
        if f"{kind}_param" not in InferParameter.DESCRIPTOR.fields_by_name:
            raise ValueError(f"parameter {name!r} has the unknown type {kind!r}")
        setattr(target[name], f"{kind}_param", content)
