"""Builds the card of a model on the worker, and loads tokenizer and template from a card on the frontend."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.model import config as model_config
from dynamo.model.file_cache import FileCache
from dynamo.model.files import checksum, find_files, read_object
from dynamo.model.gguf import Gguf, read_gguf
from dynamo.model.gguf import tokenizer as gguf_tokenizer
from dynamo.model.hub import HubConfig
from dynamo.model.source import LocalModel, resolve
from dynamo.model.template import ChatTemplate, load_template
from dynamo.model.tokenizer import Tokenizer
from dynamo.protocols.card import (
    NEEDS,
    CardFile,
    ModelCard,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    check_model_name,
)
from dynamo.protocols.engine import SamplingOptions
from dynamo.protocols.errors import FileError, ModelError

log = logging.getLogger(__name__)

GGUF = "gguf"
"""The role of a GGUF file, whose metadata stand in for all other files."""
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
    try:
        check_model_name(name)
    except ValueError as error:
        raise ModelError(str(error)) from None
    paths = {GGUF: local.path} if local.is_gguf else find_files(local.path)
    if custom_template_path is not None:
        paths[_CUSTOM_TEMPLATE] = Path(custom_template_path).expanduser().resolve()
        if not paths[_CUSTOM_TEMPLATE].is_file():
            raise ModelError(f"no such chat template: {custom_template_path}")
    if local.is_gguf:
        paths = {role: path for role, path in _beside(local.path).items() if path.is_file()} | paths
    return ModelCard(
        name=name,
        model_type=model_type.value,
        model_input=model_input,
        worker_type=worker_type,
        needs=NEEDS.get(worker_type, []),
        source=str(local.path) if Path(local.source).expanduser().exists() else local.source,
        files={role: CardFile(path=str(path), checksum=_checksum(role, path)) for role, path in paths.items()},
        context_length=_effective_context(context_length, _model_context(paths)),
        kv_cache_block_size=kv_cache_block_size,
        migration_limit=migration_limit,
        user_data=user_data,
        runtime_config=runtime_config or ModelRuntimeConfig(),
    )


def open_card(card: ModelCard, config: HubConfig) -> LoadedModel:
    """Load the model a card describes, from its paths if they are on this machine, else from the card's source.

    Blocks while it downloads and reads. `CardReader` also asks the workers for the files.
    """
    found = find_here(card)
    if len(found) < len(card.files):
        found |= find_in_source(card, found, config)
    return load(card, found)


def find_here(card: ModelCard, cache: FileCache | None = None) -> dict[str, Path]:
    """The files of the card, by role, that are on this machine: at the worker's paths or in the cache. Blocks."""
    found = {}
    for role, file in card.files.items():
        if _mismatch(role, file, Path(file.path)) is None:
            found[role] = Path(file.path)
        elif cache and (path := cache.find(file)):
            found[role] = path
    return found


def find_in_source(
    card: ModelCard, found: Mapping[str, Path], config: HubConfig, tried: Sequence[str] = ()
) -> dict[str, Path]:
    """The files of the card that are not `found`, by role, from the card's source; FileError if one is not there.

    `tried` says in words where else they were looked for. Blocks while it downloads.
    """
    missing = {role: file for role, file in card.files.items() if role not in found}
    absent = next(_mismatch(role, file, Path(file.path)) or "" for role, file in missing.items())
    why = f"cannot open model {card.name}: {'; '.join([absent, *tried])}"
    if card.source is None:
        raise FileError(f"{why}, and its card names no source to fetch it from")
    try:
        local = resolve(card.source, config=config, weights=False)
    except ModelError as error:
        raise FileError(f"{why}; fetching it from its source failed: {error}") from error
    there = {GGUF: local.path} if local.is_gguf else find_files(local.path)
    for role, file in missing.items():
        if again := _mismatch(role, file, there.get(role, Path(file.path))):
            raise FileError(f"{why}; from its source {card.source}: {again}")
    return {role: there.get(role, Path(file.path)) for role, file in missing.items()}


def load(card: ModelCard, files: Mapping[str, Path]) -> LoadedModel:
    """The model in the files of its card. Blocks while it reads."""
    if not card.files:
        raise ModelError(f"cannot open model {card.name}: its card names no files")
    loaded = (_load_gguf if GGUF in files else _load_folder)(files, card.context_length)
    if not loaded.eos_token_ids and ModelType(card.model_type) & (ModelType.Chat | ModelType.Completions):
        log.warning("%s names no end-of-sequence token: its answers end at their limit", card.name)
    return loaded


def card_template(card: ModelCard) -> ChatTemplate | None:
    """The chat template of a card that was built on this machine; None for a model that cannot chat."""
    files = {role: Path(file.path) for role, file in card.files.items()}
    if GGUF in files:
        return _gguf_template(files, read_gguf(files[GGUF]))
    text, special = read_object(files.get("tokenizer_config")), read_object(files.get("special_tokens_map"))
    return load_template(files, model_config.special_tokens(text, special), files.get(_CUSTOM_TEMPLATE))


def _mismatch(role: str, file: CardFile, path: Path) -> str | None:
    """Why the file at `path` is not the one the card names, if it is not."""
    if not os.path.isfile(path):  # unlike Path.is_file, False where this process may not look
        return f"there is no {path} here"
    try:
        return None if _checksum(role, path) == file.checksum else f"{path} differs from the worker's"
    except ModelError as error:
        return str(error)


def _load_folder(files: Mapping[str, Path], context_length: int | None) -> LoadedModel:
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


def _beside(gguf: Path) -> dict[str, Path]:
    """What is used instead of a GGUF file's own, where it is there."""
    return {
        _CUSTOM_TEMPLATE: gguf.with_suffix(".jinja"),
        "generation_config": gguf.with_suffix(".generation_config.json"),
    }


def _load_gguf(files: Mapping[str, Path], context_length: int | None) -> LoadedModel:
    gguf = read_gguf(files[GGUF])
    return LoadedModel(
        tokenizer=gguf_tokenizer.load_tokenizer(files[GGUF], gguf),
        template=_gguf_template(files, gguf),
        eos_token_ids=gguf_tokenizer.eos_token_ids(gguf),
        sampling=model_config.sampling_defaults(read_object(files.get("generation_config"))),
        context_length=context_length or gguf_tokenizer.context_length(gguf),
    )


def _gguf_template(files: Mapping[str, Path], gguf: Gguf) -> ChatTemplate | None:
    special = gguf_tokenizer.special_tokens(gguf)
    if _CUSTOM_TEMPLATE in files:
        return load_template({}, special, files[_CUSTOM_TEMPLATE])
    templates = gguf_tokenizer.templates(gguf)
    return ChatTemplate(templates, special) if templates else None


def _model_context(paths: dict[str, Path]) -> int | None:
    if GGUF in paths:
        return gguf_tokenizer.context_length(read_gguf(paths[GGUF]))
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
    return read_gguf(path).checksum if role == GGUF else checksum(path)
