"""The element types of tensors, by each of their names, and their values as bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dynamo.api.protobuf import Message
from dynamo.protocols.errors import InvalidRequest

_MOST_DIMENSIONS = 64
"""As in NumPy. Without a limit, the product of a shape's sizes could take hours to compute."""


class DataType(Struct, frozen=True):
    name: str
    """In tensors of workers."""
    datatype: str
    """In requests and metadata."""
    config_type: int
    """In a model's configuration."""
    contents: str
    """The field of a message's typed contents."""
    typecode: str
    """Python's `array` code of one element; empty for byte strings of any length."""


_TYPES = (
    DataType("Bool", "BOOL", 1, "bool_contents", "B"),
    DataType("Uint8", "UINT8", 2, "uint_contents", "B"),
    DataType("Uint16", "UINT16", 3, "uint_contents", "H"),
    DataType("Uint32", "UINT32", 4, "uint_contents", "I"),
    DataType("Uint64", "UINT64", 5, "uint64_contents", "Q"),
    DataType("Int8", "INT8", 6, "int_contents", "b"),
    DataType("Int16", "INT16", 7, "int_contents", "h"),
    DataType("Int32", "INT32", 8, "int_contents", "i"),
    DataType("Int64", "INT64", 9, "int64_contents", "q"),
    DataType("Float32", "FP32", 11, "fp32_contents", "f"),
    DataType("Float64", "FP64", 12, "fp64_contents", "d"),
    DataType("Bytes", "BYTES", 13, "bytes_contents", ""),
)
BY_NAME = {each.name: each for each in _TYPES}
BY_DATATYPE = {each.datatype: each for each in _TYPES}
BY_CONFIG_TYPE = {each.config_type: each for each in _TYPES}


def datatype_of(tensor: Message) -> DataType:
    kind = BY_DATATYPE.get(tensor.datatype)
    if kind is None:
        known = ", ".join(BY_DATATYPE)
        raise InvalidRequest.bad_value(tensor.name, f"datatype {tensor.datatype[:32]!r} is not one of {known}")
    return kind


def input_values(request: Message, index: int) -> list[Any]:
    """The elements of one input, from its typed contents or from the request's raw ones."""
    tensor = request.inputs[index]
    kind = datatype_of(tensor)
    count = element_count(tensor.shape, tensor.name)
    if request.raw_input_contents:
        if len(request.raw_input_contents) != len(request.inputs):
            raise InvalidRequest.bad_value("raw_input_contents", "must be used for all inputs or for none")
        values = from_raw(kind, request.raw_input_contents[index], tensor.name)
    else:
        values = list(getattr(tensor.contents, kind.contents))
    if len(values) != count:
        why = f"shape {list(tensor.shape)} has {count} elements, but {len(values)} were sent"
        raise InvalidRequest.bad_value(tensor.name, why)
    return values


def element_count(shape: Sequence[int], name: str) -> int:
    if len(shape) > _MOST_DIMENSIONS:
        raise InvalidRequest.bad_value(name, f"the shape has {len(shape)} dimensions, more than {_MOST_DIMENSIONS}")
    count = 1
    for size in shape:
        if size < 0:
            raise InvalidRequest.bad_value(name, f"a size in shape {list(shape)} is negative")
        count *= size
    return count


def from_raw(kind: DataType, raw: bytes, name: str) -> list[Any]:
    """Elements are little-endian and follow one another; byte strings come after their lengths."""
    if not kind.typecode:
        return _byte_strings(raw, name)
    elements = array(kind.typecode)
    if len(raw) % elements.itemsize:
        why = f"{len(raw)} bytes are not a multiple of {elements.itemsize}, the size of one element"
        raise InvalidRequest.bad_value(name, why)
    elements.frombytes(raw)
    if sys.byteorder == "big":
        elements.byteswap()
    return [bool(each) for each in elements] if kind.name == "Bool" else elements.tolist()


def _byte_strings(raw: bytes, name: str) -> list[bytes]:
    values, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if at + 4 > len(raw) or end > len(raw):
            raise InvalidRequest.bad_value(name, "a byte string ends after its raw content")
        values.append(raw[at + 4 : end])
        at = end
    return values


def to_raw(kind: DataType, values: Sequence[Any]) -> bytes:
    if not kind.typecode:
        return b"".join(len(each).to_bytes(4, "little") + each for each in values)
    elements = array(kind.typecode, values)
    if sys.byteorder == "big":
        elements.byteswap()
    return elements.tobytes()


def add_output(
    response: Message, name: str, kind: DataType, shape: Sequence[int], values: Sequence[Any], request: Message
) -> Message:
    """Its values are raw if those of the request were: clients read the form that they write."""
    output = response.outputs.add(name=name, datatype=kind.datatype, shape=shape)
    if request.raw_input_contents:
        response.raw_output_contents.append(to_raw(kind, values))
    else:
        getattr(output.contents, kind.contents).extend(values)
    return output
