"""Instance records as discovery holds them: JSON, so that an operator can read them."""

from __future__ import annotations

import msgspec

from dynamo.protocols.instance import Instance
from dynamo.runtime.names import split_key

_DECODER = msgspec.json.Decoder(Instance)


def encode(instance: Instance) -> bytes:
    return msgspec.json.encode(instance)


def decode_at(key: str, raw: bytes) -> Instance:
    """The instance recorded under `key`; a ValueError says what is wrong with the record."""
    endpoint, instance_id = split_key(key)
    try:
        instance = _DECODER.decode(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    named = (instance.namespace, instance.component, instance.endpoint, instance.instance_id)
    if named != (endpoint.namespace, endpoint.component, endpoint.name, instance_id):
        raise ValueError("it describes another instance than its key names")
    return instance
