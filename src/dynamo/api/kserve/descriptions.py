"""What a model takes and gives, as metadata and as a configuration in Triton's form."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from google.protobuf.message import DecodeError

from dynamo.api.kserve import messages
from dynamo.api.kserve.datatypes import BY_CONFIG_TYPE, BY_DATATYPE, BY_NAME
from dynamo.api.kserve.text_models import INPUTS, OUTPUTS
from dynamo.api.protobuf import Message
from dynamo.protocols.card import ModelCard, ModelType
from dynamo.protocols.errors import InvalidRequest, ModelNotFound

PLATFORM = "dynamo"


def model_config(card: ModelCard) -> Message:
    """Raises ModelNotFound for a tensor model whose worker did not say what it takes."""
    if not card.type & ModelType.TensorBased:
        return _text_config(card)
    given = card.tensor_model_config
    if given is None:
        raise ModelNotFound(f"The configuration of the model '{card.name}' was not found: its worker gave none.")
    try:
        return _tensor_config(given)
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"The model '{card.name}' has an invalid configuration: {error!r}", "name") from None


def _text_config(card: ModelCard) -> Message:
    config = messages.ModelConfig(name=card.name, platform=PLATFORM, backend=PLATFORM)
    for name, datatype, dims, optional in INPUTS:
        config.input.add(name=name, data_type=BY_DATATYPE[datatype].config_type, dims=dims, optional=optional)
    for name, datatype, dims in OUTPUTS:
        config.output.add(name=name, data_type=BY_DATATYPE[datatype].config_type, dims=dims)
    config.model_transaction_policy.decoupled = True
    return config


def _tensor_config(given: dict[str, Any]) -> Message:
    """Triton's own configuration, serialized, stands for all other fields."""
    if (serialized := given.get("triton_model_config")) is not None:
        # Bytes are base64 in a card, which is JSON.
        decoded = b64decode(serialized, validate=True) if isinstance(serialized, str) else bytes(serialized)
        return messages.ModelConfig.FromString(decoded)
    config = messages.ModelConfig(name=given["name"], platform=PLATFORM, backend=PLATFORM)
    for place, target in ((given["inputs"], config.input), (given["outputs"], config.output)):
        for each in place:
            target.add(name=each["name"], data_type=BY_NAME[each["data_type"]].config_type, dims=each["shape"])
    return config


def model_metadata(card: ModelCard) -> Message:
    config = model_config(card)
    metadata = messages.ModelMetadataResponse(name=config.name, versions=["1"], platform=config.platform or PLATFORM)
    for source, target in ((config.input, metadata.inputs), (config.output, metadata.outputs)):
        for each in source:
            kind = BY_CONFIG_TYPE.get(each.data_type)
            target.add(name=each.name, datatype=kind.datatype if kind else "TYPE_INVALID", shape=each.dims)
    return metadata
