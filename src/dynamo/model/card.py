"""Builds the card of a model on the worker, and loads tokenizer and template from a card on the frontend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.model import config as model_config
from dynamo.model import gguf_tokenizer
from dynamo.model.errors import ModelError
from dynamo.model.files import checksum, find_files, read_object
from dynamo.model.gguf import read_gguf
from dynamo.model.source import HubConfig, LocalModel, resolve
from dynamo.model.template import ChatTemplate, load_template
from dynamo.model.tokenizer import Tokenizer
from dynamo.protocols.card import CardFile, ModelCard, ModelInput, ModelRuntimeConfig, ModelType, WorkerType
from dynamo.protocols.engine import SamplingOptions

_GGUF = "gguf"
_CUSTOM_TEMPLATE = "custom_template"


class LoadedModel(Struct, frozen=True, kw_only=True):
    """What a frontend needs to turn requests into token ids and output back into text."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_token_ids: list[int]
    sampling: SamplingOptions
    context_length: int | None


def build_card(
    local: LocalModel,
    *,
    name: str,
    model_type: ModelType,
    model_input: ModelInput = ModelInput.Tokens,
    worker_type: WorkerType = WorkerType.Aggregated,
    context_length: int | None = None,
    kv_cache_block_size: int = 16,
    migration_limit: int = 0,
    user_data: dict[str, Any] | None = None,
    runtime_config: ModelRuntimeConfig | None = None,
    custom_template_path: str | Path | None = None,
) -> ModelCard:
    """The card of a model on this machine; `context_length` may only reduce the model's own."""
    if not name:
        raise ModelError("a model needs a name")
    paths = {_GGUF: local.path} if local.is_gguf else find_files(local.path)
    if custom_template_path is not None:
        paths[_CUSTOM_TEMPLATE] = Path(custom_template_path).expanduser().resolve()
        if not paths[_CUSTOM_TEMPLATE].is_file():
            raise ModelError(f"no such chat template: {custom_template_path}")
    return ModelCard(
        name=name,
        model_type=model_type.value,
        model_input=model_input,
        worker_type=worker_type,
        source=str(local.path) if Path(local.source).expanduser().exists() else local.source,
        files={role: CardFile(path=str(path), checksum=_checksum(role, path)) for role, path in paths.items()},
        context_length=_effective_context(context_length, _model_context(paths)),
        kv_cache_block_size=kv_cache_block_size,
        migration_limit=migration_limit,
        user_data=user_data,
        runtime_config=runtime_config or ModelRuntimeConfig(),
    )


def open_card(card: ModelCard, config: HubConfig) -> LoadedModel:
    """Load the model a card describes, from the worker's paths if they exist here, else from the card's source.

    Blocks while it downloads and reads.
    """
    files = _find(card, config)
    if _GGUF in files:
        return _load_gguf(files, card.context_length)
    return _load_folder(files, card.context_length)


def _find(card: ModelCard, config: HubConfig) -> dict[str, Path]:
    paths = {role: Path(file.path) for role, file in card.files.items()}
    why = _mismatch(card, paths)
    if why is None:
        return paths
    if card.source is None:
        raise ModelError(f"cannot open model {card.name}: {why}, and its card names no source to fetch it from")
    try:
        local = resolve(card.source, config=config, weights=False)
    except ModelError as error:
        raise ModelError(
            f"cannot open model {card.name}: {why}; fetching it from its source failed: {error}"
        ) from error
    found = {_GGUF: local.path} if local.is_gguf else find_files(local.path)
    if _CUSTOM_TEMPLATE in paths:
        found[_CUSTOM_TEMPLATE] = paths[_CUSTOM_TEMPLATE]
    again = _mismatch(card, found)
    if again is not None:
        raise ModelError(f"cannot open model {card.name}: {why}; from its source {card.source}: {again}")
    return {role: found[role] for role in card.files}


def _mismatch(card: ModelCard, paths: dict[str, Path]) -> str | None:
    for role, file in card.files.items():
        path = paths.get(role)
        if path is None or not path.is_file():
            return f"there is no {path or Path(file.path).name} here"
        if _checksum(role, path) != file.checksum:
            return f"{path} differs from the worker's"
    return None if paths else "its card names no files"


def _load_folder(files: dict[str, Path], context_length: int | None) -> LoadedModel:
    if "tokenizer" not in files:
        raise ModelError("the model's card has no tokenizer.json: it serves text, not tokens")
    config, generation = read_object(files.get("config")), read_object(files.get("generation_config"))
    text, special = read_object(files.get("tokenizer_config")), read_object(files.get("special_tokens_map"))
    tokenizer = Tokenizer.from_file(files["tokenizer"], model_config.vocabulary_size(config))
    return LoadedModel(
        tokenizer=tokenizer,
        template=load_template(files, model_config.special_tokens(text, special), files.get(_CUSTOM_TEMPLATE)),
        eos_token_ids=model_config.eos_token_ids(generation, config, text, special, tokenizer),
        sampling=model_config.sampling_defaults(generation),
        context_length=context_length or model_config.context_length(config, text),
    )


def _load_gguf(files: dict[str, Path], context_length: int | None) -> LoadedModel:
    gguf = read_gguf(files[_GGUF])
    special = gguf_tokenizer.special_tokens(gguf)
    templates = gguf_tokenizer.templates(gguf)
    template = ChatTemplate(templates, special) if templates else None
    if _CUSTOM_TEMPLATE in files:
        template = load_template({}, special, files[_CUSTOM_TEMPLATE])
    return LoadedModel(
        tokenizer=Tokenizer(gguf_tokenizer.tokenizer_json(gguf)),
        template=template,
        eos_token_ids=gguf_tokenizer.eos_token_ids(gguf),
        sampling=SamplingOptions(),
        context_length=context_length or gguf_tokenizer.context_length(gguf),
    )


def _model_context(paths: dict[str, Path]) -> int | None:
    if _GGUF in paths:
        return gguf_tokenizer.context_length(read_gguf(paths[_GGUF]))
    return model_config.context_length(read_object(paths.get("config")), read_object(paths.get("tokenizer_config")))


def _effective_context(asked: int | None, possible: int | None) -> int | None:
    if asked is None:
        return possible
    if asked <= 0:
        raise ModelError(f"the context length must be at least 1, not {asked}")
    if possible is not None and asked > possible:
        raise ModelError(f"context length {asked} is more than the model's own {possible}: it may only be reduced")
    return asked


def _checksum(role: str, path: Path) -> str:
    return read_gguf(path).checksum if role == _GGUF else checksum(path)
