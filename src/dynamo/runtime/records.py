"""The records of an instance in discovery, its address and its model card: JSON, so that an operator can read them."""

from __future__ import annotations

import msgspec

from dynamo.protocols.card import ModelCard
from dynamo.protocols.instance import Instance
from dynamo.runtime.names import EndpointId

_INSTANCE = msgspec.json.Decoder(Instance)
_CARD = msgspec.json.Decoder(ModelCard)


def encode(record: Instance | ModelCard) -> bytes:
    return msgspec.json.encode(record)


def encode_card(card: ModelCard) -> bytes:
    """A ValueError says why no reader could decode it."""
    raw = encode(card)
    decode_card(raw)
    return raw


def decode_instance(endpoint: EndpointId, instance_id: int, raw: bytes) -> Instance:
    """The record of this instance; a ValueError says what is wrong with it."""
    try:
        instance = _INSTANCE.decode(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    named = (instance.namespace, instance.component, instance.endpoint, instance.instance_id)
    if named != (endpoint.namespace, endpoint.component, endpoint.name, instance_id):
        raise ValueError("it describes another instance than its key names")
    return instance


def decode_card(raw: bytes) -> ModelCard:
    """A card whose type and checksum can be computed; a ValueError says what is wrong with it."""
    try:
        card = _CARD.decode(raw)
        _ = card.type, card.checksum()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError as error:
        raise ValueError(str(error)) from None
    return card
