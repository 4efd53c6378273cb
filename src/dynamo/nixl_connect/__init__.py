"""Memory moved between processes with NIXL, by ai-dynamo's names."""

from typing import Any

from dynamo.compat.missing_names import missing
from dynamo.compat.nixl_connect import (
    AbstractOperation,
    ActiveOperation,
    Connector,
    Descriptor,
    Device,
    DeviceKind,
    OperationKind,
    OperationStatus,
    PassiveOperation,
    RdmaMetadata,
    ReadableOperation,
    ReadOperation,
    SerializedDescriptor,
    WritableOperation,
    WriteOperation,
)

__all__ = [
    "AbstractOperation",
    "ActiveOperation",
    "Connector",
    "Descriptor",
    "Device",
    "DeviceKind",
    "OperationKind",
    "OperationStatus",
    "PassiveOperation",
    "RdmaMetadata",
    "ReadOperation",
    "ReadableOperation",
    "SerializedDescriptor",
    "WritableOperation",
    "WriteOperation",
]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
