"""Message classes from a compiled `.proto` file of an API.

They live in a descriptor pool of their own: a program may load another copy of the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""An instance of such a class, which has no static type."""


def message_classes(package: str, compiled: str, scope: str) -> Callable[[str], Any]:
    """Return what finds a class by the name that it has in `scope`, the package of the `.proto` file."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files(package).joinpath(compiled).read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{scope}.{name}"))
