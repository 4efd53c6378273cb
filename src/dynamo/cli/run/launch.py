"""From a command to a running process: settings, network, then the input."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct, structs

from dynamo.cli.run.grammar import Command, Output, UsageError
from dynamo.engines.base import EngineError
from dynamo.engines.catalog import LLAMACPP, MISTRALRS
from dynamo.engines.registry import load_engine
from dynamo.model import is_pulled_gguf
from dynamo.process.children import adopt_orphans, exit_now
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging, for_chat, quiet
from dynamo.runtime.process import INTERRUPTED, failures_as_one_line, run_until_signalled, start_or_exit
from dynamo.settings import given
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.network import NetworkSettings
from dynamo.worker.life import Interrupted

log = logging.getLogger(__name__)

_QUIET = ("text", "stdin", "batch")
"""Inputs whose standard error is for the user: they log warnings only."""
_ELSEWHERE = {"dyn": ("local", "run_worker"), "none": ("local", "run_follower")}
"""The inputs without a module of their own."""


def launch(command: Command, environ: Mapping[str, str]) -> None:
    with failures_as_one_line():
        if command.input.kind == "text":
            configure_dynamo_logging(for_chat(environ, verbosity=command.verbosity))
        else:
            logged = quiet(environ) if command.input.kind in _QUIET else environ
            configure_dynamo_logging(LogConfig.from_env(logged, verbosity=command.verbosity))
        if command.output.by_default:
            command = _with_default_engine(command)
        if command.output.engine:
            load_engine(command.output.engine)  # reject a missing engine before reading a prompt or fetching a model
        adopt_orphans()
        code = uvloop.run(_run(command, environ, _network(command, environ), _input(command)))
    if code:
        raise SystemExit(code)


def _with_default_engine(command: Command) -> Command:
    chosen = default_engine(command.model_path)
    log.info("no out= given, using out=%s: %s", chosen.engine, chosen.reason)
    if command.input.kind in _QUIET and sys.stderr.isatty():
        print(f"no out= given, using out={chosen.engine}: {chosen.reason}", file=sys.stderr, flush=True)
    return structs.replace(command, output=Output(chosen.engine))


def _network(command: Command, environ: Mapping[str, str]) -> RuntimeConfig:
    """In-process, unless requests come from or go to other processes."""
    if command.input.kind == "dyn":
        return _shared_network(command, environ, "no frontend would find this worker")
    if command.output.remote:
        config = _shared_network(command, environ, "out=dyn would find no worker").without_status()
    else:
        config = RuntimeConfig.in_process(environ)
    if command.input.kind == "http":
        http = command.read(FrontendSettings, environ)
        config = config.with_graceful_shutdown_timeout(http.graceful_shutdown_timeout)
    return config


def _shared_network(command: Command, environ: Mapping[str, str], otherwise: str) -> RuntimeConfig:
    config = RuntimeConfig.from_env(environ, **given(command.flags, NetworkSettings))
    if config.discovery.backend == "memory":
        raise UsageError(f"discovery in memory ends at this process: {otherwise}; use --discovery-backend file or etcd")
    return config


def _input(command: Command) -> Any:
    """The function of the input; only the module that runs is imported."""
    module, name = _ELSEWHERE.get(command.input.kind, (command.input.kind, "run"))
    return getattr(importlib.import_module(f"dynamo.cli.run.{module}"), name)


async def _run(command: Command, environ: Mapping[str, str], network: RuntimeConfig, run: Any) -> int:
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    try:
        return await run_until_signalled(runtime, run(runtime, command, environ)) or 0
    except Interrupted:
        # A thread that loads a model cannot be stopped, and the event loop would wait for it.
        sys.stderr.flush()
        exit_now(INTERRUPTED)


class DefaultEngine(Struct, frozen=True):
    engine: str
    reason: str


def default_engine(model: str | None) -> DefaultEngine:
    """llama.cpp for a GGUF file where it can be loaded, mistral.rs for everything else."""
    if model is None or not (Path(model).expanduser().is_file() or is_pulled_gguf(model)):
        return DefaultEngine(MISTRALRS.name, "the model is not a GGUF file")
    # Only what will run is imported.
    from dynamo.engines.llamacpp.library import library

    try:
        library()
    except EngineError as error:
        return DefaultEngine(MISTRALRS.name, f"llama.cpp, which is faster with GGUF files, is not here: {error}")
    return DefaultEngine(LLAMACPP.name, "the model is a GGUF file")
