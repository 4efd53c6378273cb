"""Discovery records as a DynamoWorkerMetadata's `spec.data` has them, in ai-dynamo's shape, and back.

Each record becomes an entry of one of its maps; one that no map has a shape for is kept as base64 in `other_records`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dynamo.runtime.names import CARDS, INSTANCES, split_key

EVENT_CHANNELS = "v1/event_channels/"
OTHER = "other_records"

Data = dict[str, dict[str, Any]]

_TRANSPORTS = {"nats": "nats_tcp"}
"""Names of transports that ai-dynamo calls otherwise."""
_BACK = {theirs: ours for ours, theirs in _TRANSPORTS.items()}


def to_data(records: Mapping[str, bytes]) -> Data:
    data: Data = {}
    for key, value in sorted(records.items()):
        name, path, entry = _entry(key, value)
        data.setdefault(name, {})[path] = entry
    return data


def from_data(data: Mapping[str, Mapping[str, Any] | None]) -> dict[str, bytes]:
    """A ValueError says what is malformed. A map that is null counts as empty: server-side apply makes {} null."""
    records: dict[str, bytes] = {}
    for name, (prefix, _, restore) in _SHAPES.items():
        for path, entry in (data.get(name) or {}).items():
            try:
                records[prefix + path] = restore(entry)
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                raise ValueError(f"{name}['{path}'] is malformed: {error!r}") from error
    return records


def _entry(key: str, value: bytes) -> tuple[str, str, Any]:
    for name, (prefix, shape, restore) in _SHAPES.items():
        if name != OTHER and key.startswith(prefix):
            try:
                entry = shape(key, value)
                restore(entry)
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
                break
            return name, key.removeprefix(prefix), entry
    return OTHER, key, base64.b64encode(value).decode()


def _endpoint(key: str, value: bytes) -> dict[str, Any]:
    split_key(key)
    record = msgspec.json.decode(value)
    transport = record.pop("transport")
    record["transport"] = {_TRANSPORTS.get(transport, transport): record.pop("address")}
    return {"type": "Endpoint", **_without_nulls(record)}


def _endpoint_record(entry: dict[str, Any]) -> bytes:
    record = _without_nulls(entry)
    [(transport, address)] = record.pop("transport").items()
    record.pop("type", None)
    return _encoded({**record, "transport": _BACK.get(transport, transport), "address": address})


def _model(key: str, value: bytes) -> dict[str, Any]:
    endpoint, instance_id = split_key(key)
    card = msgspec.json.decode(value)
    if not isinstance(card, dict):
        raise TypeError("a card is an object")
    named = {"namespace": endpoint.namespace, "component": endpoint.component, "endpoint": endpoint.name}
    return {"type": "Model", **named, "instance_id": instance_id, "card_json": _without_nulls(card)}


def _model_record(entry: dict[str, Any]) -> bytes:
    return _encoded(_without_nulls(entry["card_json"]))


def _channel(key: str, value: bytes) -> dict[str, Any]:
    record = msgspec.msgpack.decode(value)
    msgspec.json.encode(record)
    return {"type": "EventChannel", "channel": dict(record)}


def _channel_record(entry: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(entry["channel"], order="deterministic")


def _other(key: str, value: bytes) -> str:
    return base64.b64encode(value).decode()


def _other_record(entry: str) -> bytes:
    return base64.b64decode(entry, validate=True)


_SHAPES: dict[str, tuple[str, Callable[[str, bytes], Any], Callable[[Any], bytes]]] = {
    "endpoints": (INSTANCES, _endpoint, _endpoint_record),
    "model_cards": (CARDS, _model, _model_record),
    "event_channels": (EVENT_CHANNELS, _channel, _channel_record),
    OTHER: ("", _other, _other_record),
}
"""The maps of `spec.data`: the prefix of their keys, and the way there and back."""


def _encoded(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record, order="deterministic")


def _without_nulls(value: Any) -> Any:
    """Without members that are null: their readers have the same default, and the API server may make {} null."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
