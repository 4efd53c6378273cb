"""Requests to and answers of workers that take tensors, with ai-dynamo's field names."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dynamo.protocols.fields import NvExt


class TensorMetadata(Struct, kw_only=True):
    name: str
    data_type: str
    """Bool, Uint8 to Uint64, Int8 to Int64, Float32, Float64 or Bytes."""
    shape: list[int]
    parameters: dict[str, Any] = {}


class TensorData(Struct, kw_only=True):
    data_type: str
    values: list[Any]
    """All elements, the last dimension first to change."""


class Tensor(Struct, kw_only=True):
    metadata: TensorMetadata
    data: TensorData


class TensorRequest(Struct, kw_only=True):
    id: str | None = None
    model: str
    tensors: list[Tensor]
    parameters: dict[str, Any] = {}
    """Each like `{"int64": 3}`."""
    nvext: NvExt | None = None


class TensorResponse(Struct, kw_only=True):
    model: str = ""
    tensors: list[Tensor]
    parameters: dict[str, Any] = {}
