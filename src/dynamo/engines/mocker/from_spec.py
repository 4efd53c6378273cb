"""`out=mocker`: the mocker as dynamo-run asks for it."""

from __future__ import annotations

from pathlib import Path

from dynamo.engines.base import EngineError
from dynamo.engines.mocker.args import MockerArgs
from dynamo.engines.mocker.engine import MockerEngine
from dynamo.engines.mocker.tokens import MockVocabulary
from dynamo.engines.registry import EngineSpec, refuse_arguments
from dynamo.model import HubConfig, LoadedModel, build_card, open_card
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidArgument

_HERE = HubConfig(cache=Path(), offline=True)


def mocker_from_spec(spec: EngineSpec) -> MockerEngine:
    """The card follows the flags, which is why the file of engine arguments must not contradict them."""
    refuse_arguments("mocker", spec)
    model = spec.model_config or spec.model
    if model is None:
        raise EngineError("out=mocker needs a model, for its tokenizer")
    flags = (
        ("--kv-cache-block-size", "block_size", spec.kv_cache_block_size),
        ("--context-length", "max_model_len", spec.context_length),
    )
    try:
        args = MockerArgs.from_json(spec.extra_engine_args, [flag for flag in flags if flag[2] is not None])
        card = build_card(model, name="mocker", model_type=ModelType.Backend, context_length=args.max_model_len)
        return MockerEngine(args.within(card), vocabulary=lambda: words_of(open_card(card, _HERE)))
    except InvalidArgument as error:
        raise EngineError(f"out=mocker: {error.message}") from error


def words_of(loaded: LoadedModel) -> MockVocabulary:
    """Ids that are neither an end nor special, so that answers run to their length, and that are text by themselves.

    A part of a character is shown when the rest has come: what a client sees of the first token would be the second.
    """
    tokenizer = loaded.tokenizer
    ends = frozenset(tokenizer.special_ids) | set(loaded.eos_token_ids)

    def whole(word: int) -> bool:
        text = tokenizer.decode([word])
        return bool(text) and "\ufffd" not in text

    return MockVocabulary(0, tokenizer.vocab_size, ends, fit=whole)
