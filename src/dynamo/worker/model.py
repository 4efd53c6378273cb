"""The model of a worker: its files on this machine, its name, its card."""

from __future__ import annotations

import operator
from functools import reduce
from pathlib import Path

from msgspec import Struct

from dynamo.engines.base import Engine, EngineHandoff, EngineInfo, WorkerHandoff
from dynamo.engines.registry import NGRAM, EngineSpec, engine_entry
from dynamo.handoff.pairing import COMPUTES_PROMPTS, TRANSFER
from dynamo.model import BUNDLED, HubConfig, LocalModel, build_card, bundled, default_name, resolve
from dynamo.pipeline.output_formats import AUTO, with_parsers
from dynamo.protocols.card import (
    DRAFT_TOKENS,
    SHOW_SPECIAL_TOKENS,
    ModelCard,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
)
from dynamo.protocols.errors import ModelError
from dynamo.worker.config import asked_types


class EngineModel(Struct, frozen=True, kw_only=True):
    """What the engine will serve: its model, the model that describes it on the card, and the served name."""

    name: str
    model: LocalModel | None = None
    described_by: LocalModel | None = None
    draft: LocalModel | None = None
    is_bundled: bool = False


def served_name(spec: EngineSpec) -> str:
    """The name under which the model will be served."""
    engine = engine_entry(spec.engine)
    if spec.model_name:
        return spec.model_name
    if spec.model_path:
        return default_name(spec.model_path)
    if engine.takes == "text":
        return Path(spec.file).stem if spec.file else engine.name
    return BUNDLED


def find_model(spec: EngineSpec, hub: HubConfig, *, weights: bool) -> EngineModel:
    """The files, downloaded if need be; blocks meanwhile. An engine that needs no weights never gets them."""
    engine = engine_entry(spec.engine)
    name = served_name(spec)
    if engine.takes == "text":
        return EngineModel(name=name)
    source, is_bundled = spec.model_path, False
    if source is None and not engine.bundled:
        raise ModelError(f"out={engine.name} needs a model: name a folder, a GGUF file or a Hugging Face id")
    if source is None or (source == BUNDLED and not Path(source).exists()):
        source, is_bundled = str(bundled()), True
    described_by = spec.model_config_path
    model = resolve(source, config=hub, weights=weights and engine.weights, tokenizer=described_by is None)
    return EngineModel(
        name=name,
        model=model,
        described_by=resolve(described_by, config=hub, weights=False) if described_by else model,
        draft=_draft_model(spec, hub, weights=weights),
        is_bundled=is_bundled,
    )


def _draft_model(spec: EngineSpec, hub: HubConfig, *, weights: bool) -> LocalModel | None:
    if spec.draft_model_path in (None, NGRAM):
        return None
    try:
        return resolve(spec.draft_model_path, config=hub, weights=weights, tokenizer=False)
    except ModelError as error:
        raise ModelError(f"--draft-model: {error}") from error


def model_card(spec: EngineSpec, found: EngineModel, engine: Engine, info: EngineInfo) -> ModelCard:
    """The card of an engine that has started, complete; reads the model's files."""
    reasoning = spec.reasoning_parser
    if found.is_bundled and reasoning == AUTO:  # its template does not show how it reasons
        reasoning = "basic"
    runtime_config = ModelRuntimeConfig(
        total_kv_blocks=info.total_kv_blocks,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        tool_call_parser=spec.tool_call_parser,
        reasoning_parser=reasoning,
        guided_decoding=info.guided_decoding,
        resumes_guided=info.resumes_guided,
        data_parallel_size=info.data_parallel_size,
    )
    if info.worker_type is not WorkerType.Aggregated and isinstance(engine, WorkerHandoff | EngineHandoff):
        runtime_config.set_engine_specific(TRANSFER, engine.transfer)
    if not info.computes_prompts:
        runtime_config.set_engine_specific(COMPUTES_PROMPTS, False)
    if info.bootstrap is not None:
        runtime_config.set_disaggregated_endpoint(*info.bootstrap)
    if info.draft_tokens:
        runtime_config.set_engine_specific(DRAFT_TOKENS, info.draft_tokens)
    entry = engine_entry(spec.engine)
    if entry.repeats_prompt:
        runtime_config.set_engine_specific(SHOW_SPECIAL_TOKENS, True)
    model_type = asked_types(spec)
    if model_type is None:
        names = info.model_types or entry.model_types
        model_type = reduce(operator.or_, (ModelType[name] for name in names))
    block_size = info.kv_cache_block_size or spec.kv_cache_block_size or 16
    if engine.model_input is ModelInput.Text:
        return with_parsers(
            ModelCard(
                name=found.name,
                model_type=model_type.value,
                model_input=ModelInput.Text,
                context_length=info.context_length or spec.context_length,
                kv_cache_block_size=block_size,
                migration_limit=spec.migration_limit,
                runtime_config=runtime_config,
            )
        )
    assert found.described_by
    card = build_card(
        found.described_by,
        name=found.name,
        model_type=model_type,
        worker_type=info.worker_type,
        context_length=info.context_length or spec.context_length,
        kv_cache_block_size=block_size,
        migration_limit=spec.migration_limit,
        runtime_config=runtime_config,
        custom_template_path=spec.custom_jinja_template,
    )
    return with_parsers(card)
