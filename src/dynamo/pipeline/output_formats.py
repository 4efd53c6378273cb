"""Decides in which formats a model's output is parsed, before its card is registered."""

from __future__ import annotations

import logging

from msgspec import structs

from dynamo.model import ModelError, card_template
from dynamo.pipeline.parse import guess_formats, reasoning_formats, tool_formats
from dynamo.protocols.card import ModelCard, ModelInput, ModelType

log = logging.getLogger(__name__)

AUTO = "auto"
NONE = "none"


def with_parsers(card: ModelCard) -> ModelCard:
    """The card with the formats that its chat template writes, unless it names others; "none" means no parser.

    The result depends only on the card and its files, so that workers of one model agree. Raises ModelError for an
    unknown format.
    """
    config = card.runtime_config
    asked = {"tool_call_parser": config.tool_call_parser, "reasoning_parser": config.reasoning_parser}
    for (field, name), known in zip(asked.items(), (tool_formats(), reasoning_formats()), strict=True):
        if name is not None and name not in (AUTO, NONE, *known):
            why = f"unknown {field} '{name}'; use {', '.join((AUTO, NONE, *known))}"
            raise ModelError(f"cannot register model '{card.name}': {why}")
    open_fields = [field for field, name in asked.items() if name in (None, AUTO)]
    guessed = _guessed(card) if open_fields else {}
    chosen = {field: guessed.get(field) if name in (None, AUTO) else name for field, name in asked.items()}
    for field, what, it in (("tool_call_parser", "tool calls are", "them"), ("reasoning_parser", "reasoning is", "it")):
        if field in open_fields and chosen[field]:
            flag = f"--dyn-{field.replace('_', '-')}"
            log.info("%s parsed as %s, as the chat template writes %s; %s changes it", what, chosen[field], it, flag)
    settled = {field: None if name == NONE else name for field, name in chosen.items()}
    return structs.replace(card, runtime_config=structs.replace(config, **settled))


def _guessed(card: ModelCard) -> dict[str, str | None]:
    if card.model_input is not ModelInput.Tokens or not card.files or ModelType.Chat not in card.type:
        return {}
    try:
        template = card_template(card)
    except ModelError as error:
        log.debug("no parser is guessed from the chat template of '%s': %s", card.name, error)
        return {}
    if template is None:
        return {}
    return dict(zip(("tool_call_parser", "reasoning_parser"), guess_formats(template), strict=True))
