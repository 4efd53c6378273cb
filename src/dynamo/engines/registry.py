"""Engines by name: `out=NAME` leads here. An engine's module is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dynamo.engines.base import Engine, EngineError
from dynamo.model import LocalModel
from dynamo.protocols.card import ModelInput


class EngineSpec(Struct, kw_only=True, frozen=True):
    """All a user can say about an engine, whichever it is; each engine refuses what it cannot follow."""

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
    file: str | None = None
    """The user's Python file, for pystr and pytok."""
    arguments: list[str] = []
    """What came after `--`."""
    environ: Mapping[str, str] = {}


def _mistralrs(spec: EngineSpec) -> Engine:
    from dynamo.engines.mistralrs import MistralRsEngine

    return MistralRsEngine(spec)


def _pystr(spec: EngineSpec) -> Engine:
    from dynamo.engines.python_file import PythonFileEngine

    return PythonFileEngine(spec, ModelInput.Text)


def _pytok(spec: EngineSpec) -> Engine:
    from dynamo.engines.python_file import PythonFileEngine

    return PythonFileEngine(spec, ModelInput.Tokens)


def _mocker(spec: EngineSpec) -> Engine:
    from dynamo.engines.mocker.from_spec import mocker_from_spec

    return mocker_from_spec(spec)


def _echo_core(spec: EngineSpec) -> Engine:
    from dynamo.engines.echo import EchoCore, delay_from_env

    return EchoCore(delay_from_env(spec.environ))


def _echo_full(spec: EngineSpec) -> Engine:
    from dynamo.engines.echo import EchoFull, delay_from_env

    return EchoFull(delay_from_env(spec.environ))


ENGINES: dict[str, Callable[[EngineSpec], Engine]] = {
    "mistralrs": _mistralrs,
    "pystr": _pystr,
    "pytok": _pytok,
    "echo_core": _echo_core,
    "echo_full": _echo_full,
    "mocker": _mocker,
}
ALIASES = {"echo": "echo_full", "llama_cpp": "llamacpp"}
NOT_YET = ("llamacpp", "vllm", "sglang", "trtllm")
"""Names users know from the guides whose engines this build does not have yet."""


def make_engine(name: str, spec: EngineSpec) -> Engine:
    """Raises EngineError for a name that is not there, and for a spec its engine cannot follow."""
    name = ALIASES.get(name, name)
    make = ENGINES.get(name)
    if make is None:
        if name in NOT_YET:
            raise EngineError(f"this build does not have the engine '{name}' yet; it has {', '.join(ENGINES)}")
        raise EngineError(f"unknown engine '{name}'; this build has {', '.join(ENGINES)}")
    return make(spec)
