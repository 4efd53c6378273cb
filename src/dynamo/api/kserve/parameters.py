"""Named parameters of requests, tensors and responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.api.kserve.messages import InferParameter, Message

FINAL = "triton_final_response"
"""Marks the last response to a request in a stream."""


def plain(parameters: Mapping[str, Message]) -> dict[str, Any]:
    """By name, the value alone."""
    return {name: getattr(value, choice) for name, value, choice in _chosen(parameters)}


def tagged(parameters: Mapping[str, Message]) -> dict[str, dict[str, Any]]:
    """As tensor workers read them: each value under the name of its type."""
    return {
        name: {choice.removesuffix("_param"): getattr(value, choice)} for name, value, choice in _chosen(parameters)
    }


def _chosen(parameters: Mapping[str, Message]) -> list[tuple[str, Message, str]]:
    chosen = [(name, value, value.WhichOneof("parameter_choice")) for name, value in parameters.items()]
    return [each for each in chosen if each[2]]


def fill(target: Message, given: Any) -> None:
    """Into a message's parameters, from what a tensor worker answers; raises ValueError for what is none."""
    for name, value in (given or {}).items():
        if not isinstance(value, dict) or len(value) != 1:
            raise ValueError(f"parameter {name!r} must be like {{'int64': 3}}, not {value!r}")
        ((kind, content),) = value.items()
        if f"{kind}_param" not in InferParameter.DESCRIPTOR.fields_by_name:
            raise ValueError(f"parameter {name!r} has the unknown type {kind!r}")
        setattr(target[name], f"{kind}_param", content)
