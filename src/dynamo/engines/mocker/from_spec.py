"""`out=mocker`: the mocker as dynamo-run asks for it."""

from __future__ import annotations

from pathlib import Path

from dynamo.engines.base import EngineError
from dynamo.engines.mocker.args import MockerArgs
from dynamo.engines.mocker.engine import MockerEngine
from dynamo.engines.mocker.tokens import Vocabulary
from dynamo.engines.registry import EngineSpec
from dynamo.model import HubConfig, LocalModel, build_card, open_card
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidArgument


def mocker_from_spec(spec: EngineSpec) -> MockerEngine:
    """Flags fill what the file of engine arguments leaves out."""
    if spec.model is None:
        raise EngineError("out=mocker needs a model, for its tokenizer")
    flags = {"max_model_len": spec.context_length, "block_size": spec.kv_cache_block_size}
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        args = MockerArgs.from_json(given | spec.extra_engine_args)
        return MockerEngine(args, vocabulary=_words(spec.model))
    except InvalidArgument as error:
        raise EngineError(f"out=mocker: {error.message}") from error


def _words(model: LocalModel) -> Vocabulary:
    """Ids that are neither an end nor special, so that answers run to their length."""
    card = build_card(model, name="mocker", model_type=ModelType.Backend)
    loaded = open_card(card, HubConfig(cache=Path(), offline=True))
    tokenizer = loaded.tokenizer
    return Vocabulary(0, tokenizer.vocab_size, frozenset(tokenizer.special_ids) | set(loaded.eos_token_ids))
