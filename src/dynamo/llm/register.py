"""Put a model on the network: its card goes beside the instance that serves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, overload

from msgspec import structs

from dynamo.model import HubConfig, build_card, default_name, resolve
from dynamo.model.registration import put_card, remove_card
from dynamo.pipeline.output_formats import with_parsers
from dynamo.process.threads import in_thread
from dynamo.protocols.card import ModelCard, ModelInput, ModelRuntimeConfig, ModelType, WorkerType
from dynamo.runtime import Endpoint


@overload
async def register_llm(
    model_type: ModelType, endpoint: Endpoint, model_path: str | Path, model_name: str | None = None, /, **options: Any
) -> None: ...


@overload
async def register_llm(
    model_input: ModelInput,
    model_type: ModelType,
    endpoint: Endpoint,
    model_path: str | Path,
    model_name: str | None = None,
    /,
    **options: Any,
) -> None: ...


@overload
async def register_llm(**options: Any) -> None: ...


async def register_llm(*args: Any, **options: Any) -> None:
    """Register a model under an endpoint of this process.

    Called as `(model_type, endpoint, model_path[, model_name])`, where `ModelType.Backend` means tokens in and out and
    the others text, or as `(model_input, model_type, endpoint, model_path[, model_name])`. Options: model_name,
    context_length, kv_cache_block_size, user_data, migration_limit, custom_template_path, runtime_config, worker_type,
    needs (kinds of workers that this one is used with), tensor_model_config (the inputs and outputs of a model that
    takes tensors).
    Raises ModelError when the model cannot be found, when its options are invalid, or when another worker
    serves this name with another card.
    """
    asked = _arguments(args, options)
    endpoint: Endpoint = asked.pop("endpoint")
    card = await in_thread(lambda: _make_card(**asked))
    await register_card(endpoint, card)


async def register_card(endpoint: Endpoint, card: ModelCard) -> ModelCard:
    """Register the card, completed with the parsers that its chat template asks for, and return it."""
    return await put_card(endpoint, await in_thread(lambda: with_parsers(card)))


async def unregister_llm(endpoint: Endpoint) -> None:
    """Take this process's model at the endpoint off the network; running requests finish."""
    await remove_card(endpoint)


async def fetch_llm(model: str, ignore_weights: bool = False) -> str:
    """The folder or file a model name leads to, downloaded if need be."""
    hub = HubConfig.from_env(os.environ)
    local = await in_thread(lambda: resolve(model, config=hub, weights=not ignore_weights))
    return str(local.path)


def _arguments(args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, for each of the published signatures."""
    with_input = (bool(args) and isinstance(args[0], ModelInput)) or "model_input" in options
    names = ["model_type", "endpoint", "model_path", "model_name"]
    if with_input:
        names.insert(0, "model_input")
    if len(args) > len(names):
        raise TypeError(f"register_llm takes at most {len(names)} positional arguments, got {len(args)}")
    asked = dict(zip(names, args, strict=False))
    optional = _make_card.__kwdefaults__ or {}
    for name, value in options.items():
        if name not in optional and name not in names:
            raise TypeError(f"register_llm does not know the option '{name}'; it knows {', '.join(optional)}")
        if name in asked:
            raise TypeError(f"register_llm got '{name}' twice")
        asked[name] = value
    for name in names[:-1]:
        if name not in asked:
            raise TypeError(f"register_llm needs '{name}'")
    if not isinstance(asked["model_type"], ModelType):
        raise TypeError(f"model_type must be a ModelType, not {type(asked['model_type']).__name__}")
    if not isinstance(asked["endpoint"], Endpoint):
        raise TypeError(f"endpoint must be an Endpoint, not {type(asked['endpoint']).__name__}")
    if not with_input:
        tokens = asked["model_type"] == ModelType.Backend
        asked["model_input"] = ModelInput.Tokens if tokens else ModelInput.Text
    return asked


def _make_card(
    *,
    model_input: ModelInput,
    model_type: ModelType,
    model_path: str | Path,
    model_name: str | None = None,
    context_length: int | None = None,
    kv_cache_block_size: int | None = None,
    user_data: dict[str, Any] | None = None,
    tensor_model_config: dict[str, Any] | None = None,
    migration_limit: int | None = None,
    custom_template_path: str | Path | None = None,
    runtime_config: ModelRuntimeConfig | None = None,
    worker_type: WorkerType = WorkerType.Aggregated,
    needs: list[list[WorkerType]] | None = None,
) -> ModelCard:
    name = model_name or default_name(str(model_path))
    if context_length is None and runtime_config is not None:
        context_length = runtime_config.context_length or None
    if model_input is not ModelInput.Tokens:
        return ModelCard(
            name=name,
            model_type=model_type.value,
            model_input=model_input,
            worker_type=worker_type,
            needs=needs or [],
            source=str(model_path),
            context_length=context_length,
            kv_cache_block_size=kv_cache_block_size or 16,
            user_data=user_data,
            tensor_model_config=tensor_model_config,
            migration_limit=migration_limit or 0,
            runtime_config=runtime_config or ModelRuntimeConfig(),
        )
    local = resolve(str(model_path), config=HubConfig.from_env(os.environ))
    card = build_card(
        local,
        name=name,
        model_type=model_type,
        model_input=model_input,
        worker_type=worker_type,
        context_length=context_length,
        kv_cache_block_size=kv_cache_block_size or 16,
        migration_limit=migration_limit or 0,
        user_data=user_data,
        runtime_config=runtime_config,
        custom_template_path=custom_template_path,
    )
    return card if needs is None else structs.replace(card, needs=needs)
