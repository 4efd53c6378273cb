"""Moves memory between processes with NIXL, by ai-dynamo's names: one side offers memory, the other reads or writes it.

Nothing here needs NIXL until a `Connector` connects.
"""

from typing import Any

from dynamo.compat.missing_names import missing
from dynamo.compat.nixl_connect.connector import Connector
from dynamo.compat.nixl_connect.memory import Descriptor, Device, DeviceKind
from dynamo.compat.nixl_connect.metadata import OperationKind, RdmaMetadata, SerializedDescriptor
from dynamo.compat.nixl_connect.operations import (
    AbstractOperation,
    ActiveOperation,
    OperationStatus,
    PassiveOperation,
    ReadableOperation,
    ReadOperation,
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
