"""An engine in this process: fetch its model, build the model card, serve its endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import reduce
from pathlib import Path

from msgspec import Struct

from dynamo.engines.base import Engine, EngineInfo
from dynamo.engines.registry import EngineSpec, engine_entry, make_engine
from dynamo.llm.register import register_card
from dynamo.model import BUNDLED, HubConfig, LocalModel, build_card, bundled, default_name, resolve
from dynamo.model.errors import ModelError
from dynamo.pipeline.parse import reasoning_formats, tool_formats
from dynamo.protocols.card import ModelCard, ModelInput, ModelRuntimeConfig, ModelType
from dynamo.run.errors import INTERRUPTED, Interrupted
from dynamo.run.files import engine_arguments
from dynamo.run.grammar import Command, UsageError
from dynamo.runtime import DistributedRuntime, Endpoint
from dynamo.runtime.discovery import Put
from dynamo.runtime.names import EndpointId, instance_key
from dynamo.runtime.process import exit_if_blocked, unless_shut_down
from dynamo.runtime.threads import in_thread
from dynamo.settings import nearest
from dynamo.worker import serve_engine

_BUNDLED_PARSERS = ("hermes", "basic")


class EngineModel(Struct, frozen=True, kw_only=True):
    """What the engine will serve: its model, the model that describes it on the card, and the served name."""

    name: str
    model: LocalModel | None = None
    described_by: LocalModel | None = None
    is_bundled: bool = False


@asynccontextmanager
async def engine_served(
    runtime: DistributedRuntime, command: Command, environ: Mapping[str, str], endpoint_id: EndpointId
) -> AsyncIterator[ModelCard]:
    """Start the engine, serve it at `endpoint_id` while the block runs, then drain and stop it."""
    served, engine, info = await _start(runtime, command, environ)
    try:
        endpoint = Endpoint(runtime, endpoint_id)
        card = await in_thread(lambda: _card(command, served, engine, info))
        if not card.takes_requests and command.input.kind != "dyn":
            raise UsageError(f"a {info.worker_type.value} worker answers no requests itself: use in=dyn://...")
        await register_card(endpoint, card)
        serving = asyncio.create_task(serve_engine(endpoint, engine, card.name))
        try:
            await _wait_until_listed(runtime, instance_key(endpoint_id, runtime.instance_id), serving)
            yield card
        finally:
            if not runtime.is_shutting_down:
                serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
    finally:
        await engine.close()


async def start_follower(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> Engine:
    """The engine of a follower node."""
    return (await _start(runtime, command, environ))[1]


async def _start(
    runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]
) -> tuple[EngineModel, Engine, EngineInfo]:
    """Find the model and load it. This may take long; a signal interrupts it."""

    async def start() -> tuple[EngineModel, Engine, EngineInfo]:
        served = await in_thread(lambda: _find(command, HubConfig.from_env(environ)))
        if command.input.kind == "http" or sys.stderr.isatty():
            print(f"loading {served.name} …", file=sys.stderr, flush=True)
        engine = _make(command, served, environ)
        try:
            return served, engine, await engine.start()
        except BaseException:
            await engine.close()
            raise

    _check_parsers(command)
    with exit_if_blocked(INTERRUPTED):
        started = await unless_shut_down(runtime, start())
    if started is None:
        raise Interrupted("interrupted")
    return started


def _check_parsers(command: Command) -> None:
    for flag, name, known in (
        ("--dyn-tool-call-parser", command.dyn_tool_call_parser, tool_formats()),
        ("--dyn-reasoning-parser", command.dyn_reasoning_parser, reasoning_formats()),
    ):
        if name is not None and name not in known:
            raise UsageError(f"{flag}: unknown format '{name}'{nearest(name, known) or '; use ' + ', '.join(known)}")


async def _wait_until_listed(runtime: DistributedRuntime, key: str, serving: asyncio.Task[None]) -> None:
    """Wait until discovery lists the instance; if serving fails first, raise its error."""

    async def watch() -> None:
        async with contextlib.aclosing(runtime.discovery.watch(key)) as changes:
            async for change in changes:
                if isinstance(change, Put):
                    return

    seen = asyncio.create_task(watch())
    await asyncio.wait({seen, serving}, return_when=asyncio.FIRST_COMPLETED)
    seen.cancel()
    await asyncio.gather(seen, return_exceptions=True)
    if serving.done():
        await serving


def served_name(command: Command) -> str:
    """The name under which the engine of this process will serve its model."""
    assert command.output.engine
    engine = engine_entry(command.output.engine)
    if command.model_name:
        return command.model_name
    if command.model:
        return default_name(command.model)
    if engine.takes == "text":
        return Path(command.output.file).stem if command.output.file else engine.name
    return BUNDLED


def _find(command: Command, hub: HubConfig) -> EngineModel:
    assert command.output.engine
    engine = engine_entry(command.output.engine)
    name = served_name(command)
    if engine.takes == "text":
        return EngineModel(name=name)
    source, is_bundled = command.model, False
    if source == BUNDLED and not Path(source).exists():
        source, is_bundled = str(bundled()), True
    elif source is None:
        if not engine.bundled:
            raise ModelError(f"out={engine.name} needs a model: name a folder, a GGUF file or a Hugging Face id")
        source, is_bundled = str(bundled()), True
        print(f"no model given: using the bundled model '{BUNDLED}'", file=sys.stderr)
    config = command.model_config
    model = resolve(source, config=hub, weights=engine.weights, tokenizer=config is None)
    return EngineModel(
        name=name,
        model=model,
        described_by=resolve(config, config=hub, weights=False) if config else model,
        is_bundled=is_bundled,
    )


def _make(command: Command, served: EngineModel, environ: Mapping[str, str]) -> Engine:
    assert command.output.engine
    return make_engine(
        command.output.engine,
        EngineSpec(
            model=served.model,
            model_config=served.described_by if command.model_config else None,
            model_name=served.name,
            context_length=command.context_length,
            kv_cache_block_size=command.kv_cache_block_size,
            tensor_parallel_size=command.tensor_parallel_size,
            base_gpu_id=command.base_gpu_id,
            num_nodes=command.num_nodes,
            node_rank=command.node_rank,
            leader_addr=command.leader_addr,
            extra_engine_args=engine_arguments(command.extra_engine_args),
            file=command.output.file,
            arguments=command.arguments,
            environ=environ,
        ),
    )


def _card(command: Command, served: EngineModel, engine: Engine, info: EngineInfo) -> ModelCard:
    tools, reasoning = _BUNDLED_PARSERS if served.is_bundled else (None, None)
    runtime_config = ModelRuntimeConfig(
        total_kv_blocks=info.total_kv_blocks,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        tool_call_parser=command.dyn_tool_call_parser or tools,
        reasoning_parser=command.dyn_reasoning_parser or reasoning,
        guided_decoding=info.guided_decoding,
        data_parallel_size=info.data_parallel_size,
    )
    assert command.output.engine
    names = engine_entry(command.output.engine).model_types
    model_type = reduce(operator.or_, (ModelType[name] for name in names))
    block_size = command.kv_cache_block_size or info.kv_cache_block_size or 16
    if engine.model_input is ModelInput.Text:
        return ModelCard(
            name=served.name,
            model_type=model_type.value,
            model_input=ModelInput.Text,
            context_length=info.context_length or command.context_length,
            kv_cache_block_size=block_size,
            migration_limit=command.migration_limit,
            runtime_config=runtime_config,
        )
    assert served.described_by
    return build_card(
        served.described_by,
        name=served.name,
        model_type=model_type,
        worker_type=info.worker_type,
        context_length=info.context_length or command.context_length,
        kv_cache_block_size=block_size,
        migration_limit=command.migration_limit,
        runtime_config=runtime_config,
    )
