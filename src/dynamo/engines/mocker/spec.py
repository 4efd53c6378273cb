"""`out=mocker`: from what a user said to a mocker of that model."""

from __future__ import annotations

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.model import HubConfig, LoadedModel, LocalModel, build_card, open_card
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidArgument

from .args import MockerArgs
from .engine import MockerEngine
from .tokens import Vocabulary


def mocker_for(spec: EngineSpec) -> MockerEngine:
    """Raises EngineError for arguments that are unknown, wrong or contradict each other."""
    args = dict(spec.extra_engine_args)
    for flag, name, value in (
        ("--kv-cache-block-size", "block_size", spec.kv_cache_block_size),
        ("--context-length", "max_model_len", spec.context_length),
    ):
        if value is not None and args.setdefault(name, value) != value:
            raise EngineError(f"{flag} says {value}, the extra engine arguments say {name} {args[name]}: give one")
    if spec.tensor_parallel_size != 1 or spec.num_nodes != 1:
        raise EngineError("the mocker imitates one process: --tensor-parallel-size and --num-nodes must be 1")
    if spec.arguments:
        raise EngineError(f"the mocker takes no arguments after --, but got {' '.join(spec.arguments)}")
    model = spec.model_config or spec.model
    hub = HubConfig.from_env(spec.environ)
    try:
        mocker_args = MockerArgs.from_json(args)
    except InvalidArgument as error:
        raise EngineError(str(error)) from None
    return MockerEngine(mocker_args, vocabulary=(lambda: vocabulary_of(model, hub)) if model else None)


def vocabulary_of(model: LocalModel, hub: HubConfig) -> Vocabulary:
    """The words of a model's tokenizer; blocks while it loads."""
    return words_of(open_card(build_card(model, name="mocker", model_type=ModelType.Backend), hub))


def words_of(loaded: LoadedModel) -> Vocabulary:
    """Ids that are words: neither an end nor special, so that answers run to their length."""
    tokenizer = loaded.tokenizer
    return Vocabulary(0, tokenizer.vocab_size, frozenset(tokenizer.special_ids) | set(loaded.eos_token_ids))
