"""What the side that offers memory sends to the other side, by any channel."""

from __future__ import annotations

import base64
import binascii
import zlib
from enum import IntEnum
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.compat.nixl_connect.memory import Descriptor, Device

_MOST_BYTES = 1 << 24
"""The limit of an agent's metadata, which is a few hundred bytes."""


class OperationKind(IntEnum):
    UNSPECIFIED = 0
    READ = 1
    WRITE = 2

    def __str__(self) -> str:
        return self.name.lower()


class SerializedDescriptor(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    device: str = "cpu"
    ptr: int = 0
    size: int = 0

    def to_descriptor(self) -> Descriptor:
        return Descriptor((self.ptr, self.size, Device(self.device), None))


class RdmaMetadata(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Can be a field of a pydantic model, and has the methods of one that programs call."""

    descriptors: list[SerializedDescriptor] = []
    nixl_metadata: str = ""
    notification_key: str = ""
    operation_kind: int = 0

    def to_descriptors(self) -> Descriptor | list[Descriptor]:
        """The remote memory: one descriptor, or a list if there are several."""
        remote = [each.to_descriptor() for each in self.descriptors]
        return remote[0] if len(remote) == 1 else remote

    def agent_metadata(self) -> bytes:
        """The agent's metadata as NIXL takes it; raises ValueError for anything else."""
        try:
            packed = base64.b64decode(self.nixl_metadata.removeprefix("b64:"), validate=True)
            unpacking = zlib.decompressobj()
            unpacked = unpacking.decompress(packed, _MOST_BYTES)
        except (binascii.Error, zlib.error, ValueError) as error:
            raise ValueError(f"nixl_metadata cannot be read: {error}") from None
        if not unpacked or unpacking.unconsumed_tail:
            raise ValueError("nixl_metadata is empty or too long")
        return unpacked

    @staticmethod
    def packed(agent_metadata: bytes) -> str:
        return "b64:" + base64.b64encode(zlib.compress(agent_metadata)).decode()

    def model_dump(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))

    def model_dump_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def model_validate(cls, value: Any) -> RdmaMetadata:
        return value if isinstance(value, cls) else msgspec.convert(value, cls)

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> RdmaMetadata:
        return msgspec.json.decode(text, type=cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        dump = core_schema.plain_serializer_function_ser_schema(cls.model_dump)
        return core_schema.no_info_plain_validator_function(cls.model_validate, serialization=dump)
