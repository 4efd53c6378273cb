"""From the name of an engine to a running one. Its module is imported only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dynamo.engines.base import Engine, EngineError
from dynamo.engines.catalog import BUILT_IN, EngineEntry, find
from dynamo.model import LocalModel


class EngineSpec(Struct, kw_only=True, frozen=True):
    """Everything a user can ask of an engine; each engine refuses what it cannot do."""

    model: LocalModel | None = None
    model_config: LocalModel | None = None
    """Where the tokenizer is, if not with the model: `--model-config`."""
    model_name: str = ""
    context_length: int | None = None
    kv_cache_block_size: int | None = None
    tensor_parallel_size: int = 1
    base_gpu_id: int = 0
    num_nodes: int = 1
    node_rank: int = 0
    leader_addr: str | None = None
    extra_engine_args: dict[str, Any] = {}
    kv_events: bool = True
    """Whether the worker publishes KV events: `--disable-kv-routing`."""
    steps: bool = False
    """Whether the worker records the engine's steps: `--fpm-trace`."""
    file: str | None = None
    """The user's Python file, for pystr and pytok."""
    arguments: list[str] = []
    """The engine's own flags: what came after `--`, or what a worker's command line has besides its own."""
    environ: Mapping[str, str] = {}


def engine_entry(name: str) -> EngineEntry:
    """Raises EngineError for a name that no engine has, one whose plugin is broken and one that is not here yet."""
    try:
        entry = find(name)
    except Exception as error:
        raise EngineError(f"cannot load the engine '{name}': {type(error).__name__}: {error}") from error
    names = ", ".join(each.name for each in BUILT_IN if each.factory)
    if entry is None:
        raise EngineError(f"unknown engine '{name}'; this build has {names}")
    if entry.factory is None:
        needs = f" (it will need: {entry.install})" if entry.install else ""
        raise EngineError(f"this build does not have the engine '{entry.name}' yet{needs}; it has {names}")
    return entry


def load_engine(name: str) -> Callable[[EngineSpec], Engine]:
    """The factory of an engine. Raises EngineError, with what to install, if its module cannot be imported."""
    entry = engine_entry(name)
    module, _, factory = (entry.factory or "").partition(":")
    try:
        make: Callable[[EngineSpec], Engine] = getattr(importlib.import_module(module), factory)
    except EngineError:
        raise
    except Exception as error:  # a package without its hardware fails in ways of its own
        fix = f"; {entry.install}" if entry.install else ""
        raise EngineError(f"cannot load the engine '{entry.name}': {error}{fix}") from error
    return make


def refuse_parallel(entry: EngineEntry, spec: EngineSpec) -> None:
    """Raises EngineError if several GPUs or nodes are asked of an engine that uses one."""
    for flag, asked in (
        ("--tensor-parallel-size", spec.tensor_parallel_size != 1),
        ("--num-nodes", spec.num_nodes != 1),
        ("--base-gpu-id", spec.base_gpu_id != 0),
    ):
        if asked and not entry.parallel:
            raise EngineError(
                f"the engine '{entry.name}' cannot follow {flag}: it runs on one node and picks its device"
            )


def refuse_arguments(name: str, spec: EngineSpec) -> None:
    """For engines without flags of their own: raises EngineError that names the first one given."""
    if spec.arguments:
        raise EngineError(f"unknown argument '{spec.arguments[0]}': the engine '{name}' has no flags of its own")


def check_engine(name: str, spec: EngineSpec) -> Callable[[EngineSpec], Engine]:
    """The factory. Raises EngineError for an engine that cannot be loaded and for GPUs or nodes it cannot use."""
    factory = load_engine(name)
    refuse_parallel(engine_entry(name), spec)
    return factory


def make_engine(name: str, spec: EngineSpec) -> Engine:
    """Raises EngineError for an engine that cannot be loaded, and for a spec that it cannot follow."""
    engine = check_engine(name, spec)(spec)
    entry = engine_entry(name)
    if engine.model_input.value != entry.takes:
        raise EngineError(f"the engine '{entry.name}' takes {engine.model_input.value}, its entry says {entry.takes}")
    return engine
