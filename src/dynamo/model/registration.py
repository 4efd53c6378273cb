"""Registers a model's card beside the instance that serves it."""

from __future__ import annotations

import logging

from msgspec import structs

from dynamo.model.offer import offer_files, withdraw_files
from dynamo.protocols.card import ModelCard
from dynamo.protocols.errors import ModelError
from dynamo.runtime import Endpoint, records
from dynamo.runtime.names import CARDS

log = logging.getLogger(__name__)


async def put_card(endpoint: Endpoint, card: ModelCard) -> ModelCard:
    """Register a complete card, and return it as readers find it.

    Those that do not have its files get them from this process.
    """
    runtime = endpoint.runtime
    try:
        records.encode_card(card)
    except ValueError as error:
        raise ModelError(f"cannot register model '{card.name}': its card is invalid: {error}") from None
    await runtime.start()
    await _reject_disagreement(endpoint, card)
    # Before the card: a reader that finds it must also find its files.
    if await offer_files(endpoint, card):
        card = structs.replace(card, serves_files=True)
    await runtime.discovery.put(endpoint.card_key, records.encode_card(card))
    log.info("registered model '%s' at %s", card.name, endpoint)
    return card


async def remove_card(endpoint: Endpoint) -> None:
    """Take this process's model at the endpoint off the network; running requests finish."""
    await endpoint.runtime.discovery.delete(endpoint.card_key)
    withdraw_files(endpoint)


async def _reject_disagreement(endpoint: Endpoint, card: ModelCard) -> None:
    """Two workers of one model and namespace must be interchangeable; the second to register is rejected.

    Those of another namespace may differ: so does the next generation of a deployment that is updated.
    """
    own = _namespace(endpoint.card_key)
    for key, value in (await endpoint.runtime.discovery.get_prefix(CARDS)).items():
        if _namespace(key) != own:
            continue
        try:
            other = records.decode_card(value)
        except ValueError:
            continue
        if key != endpoint.card_key and _same_work(card, other) and other.checksum() != card.checksum():
            message = (
                f"cannot register model '{card.name}': {key.removeprefix(CARDS)} serves it with another card "
                f"({', '.join(differences(card, other))}); use another model name, or make the workers alike"
            )
            log.error("%s", message)
            raise ModelError(message)


def _namespace(card_key: str) -> str:
    return card_key.removeprefix(CARDS).partition("/")[0]


def _same_work(ours: ModelCard, theirs: ModelCard) -> bool:
    """Whether a request for this model could be sent to either."""
    both_answer = ours.takes_requests and theirs.takes_requests
    return ours.name == theirs.name and (both_answer or ours.worker_type is theirs.worker_type)


def differences(ours: ModelCard, theirs: ModelCard) -> list[str]:
    """What makes two cards differ, in words for a log."""
    found = []
    for field in ("model_type", "model_input", "worker_type", "context_length", "kv_cache_block_size"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        if mine != other:
            found.append(f"{field} {getattr(mine, 'value', mine)} here, {getattr(other, 'value', other)} there")
    for role in sorted(ours.files.keys() | theirs.files.keys()):
        mine, other = ours.files.get(role), theirs.files.get(role)
        if (mine and mine.checksum) != (other and other.checksum):
            found.append(f"the {role} file differs" if mine and other else f"only one has a {role} file")
    for field in ("tool_call_parser", "reasoning_parser", "guided_decoding"):
        mine, other = getattr(ours.runtime_config, field), getattr(theirs.runtime_config, field)
        if mine != other:
            found.append(f"{field} {mine} here, {other} there")
    return found
