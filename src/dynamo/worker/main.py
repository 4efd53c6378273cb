"""`python -m dynamo.ENGINE`: the command of every engine's worker."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Awaitable, Mapping, Sequence
from functools import reduce
from typing import Any

import uvloop
from msgspec import structs

from dynamo.engines.base import EngineError
from dynamo.engines.registry import engine_entry, load_engine
from dynamo.process.children import adopt_orphans, exit_now
from dynamo.process.readiness import report_ready
from dynamo.protocols.card import ModelType, WorkerType
from dynamo.protocols.errors import StartError
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.names import DEFAULT_COMPONENT, DEFAULT_ENDPOINT, DEFAULT_NAMESPACE, EndpointId
from dynamo.runtime.plane.admission import request_limit
from dynamo.runtime.process import INTERRUPTED, fail, failures_as_one_line, run_until_signalled, start_or_exit
from dynamo.settings import given, nearest, options
from dynamo.settings.arguments import FlagParser
from dynamo.settings.network import NetworkSettings
from dynamo.settings.worker import StepTraceSettings, WorkerSettings
from dynamo.worker.config import WorkerConfig
from dynamo.worker.life import Interrupted, engine_started, serve_started
from dynamo.worker.model import served_name

_TABLES = (WorkerSettings, StepTraceSettings, NetworkSettings)
_COMPONENTS = {WorkerType.Prefill: "prefill", WorkerType.Decode: "decode"}


def main(engine: str, argv: Sequence[str] | None = None, command: str | None = None) -> None:
    """Serve `engine` until a signal comes or the engine dies. Exits: 2 for a wrong flag, 1 for what fails."""
    command = command or f"python -m dynamo.{engine}"
    flags, arguments = parse(command, sys.argv[1:] if argv is None else argv)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=flags["verbosity"]))
        settings = WorkerSettings.from_env(os.environ, **given(flags, WorkerSettings))
        steps = StepTraceSettings.from_env(os.environ, **given(flags, StepTraceSettings))
        config = structs.replace(worker_config(engine, settings, arguments), step_trace=steps)
        place = Place(settings, flags)
        network = RuntimeConfig.from_env(os.environ, **given(flags, NetworkSettings))
        load_engine(engine)
        config.check()
    except ValueError as error:
        raise fail(f"{error}; see {command} --help", code=2, error=error) from None
    except StartError as error:
        raise fail(str(error), error=error) from None
    adopt_orphans()
    with failures_as_one_line():
        uvloop.run(_run(config, place, network, os.environ))


def parse(command: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The flags of a worker, and the rest, which is the engine's: it refuses what it does not know.

    The first word may be the model instead of a flag.
    """
    words = list(words)
    model = words.pop(0) if words and not words[0].startswith("-") else None
    cut = words.index("--") if "--" in words else len(words)
    parser = FlagParser(command, "A worker; every other flag is the engine's own.", *_TABLES)
    known, rest = parser.parse_known_args(words[:cut])
    flags = vars(known)
    if model and flags["model"] not in (None, model):
        parser.error(f"the model is given twice: {model} and --model {flags['model']}")
    return flags | {"model": model or flags["model"]}, rest + words[cut + 1 :]


def misspelt(refusal: str, arguments: Sequence[str]) -> str:
    """A hint, if an engine's `refusal` names one of its `arguments` that is nearly a flag of the worker."""
    known = [flag for table in _TABLES for option in options(table) for flag in option.flags]
    for word in arguments:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag in refusal and (hint := nearest(flag, known, cutoff=0.8)):
            return hint
    return ""


def worker_config(engine: str, settings: WorkerSettings, arguments: list[str]) -> WorkerConfig:
    return WorkerConfig(
        engine=engine,
        model=settings.model,
        model_name=settings.model_name,
        custom_jinja_template=settings.custom_jinja_template,
        model_type=_model_type((settings.endpoint_types or "").replace(",", " ").split()),
        context_length=settings.context_length,
        kv_cache_block_size=settings.kv_cache_block_size,
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        extra_engine_args=settings.extra_engine_args,
        arguments=arguments,
        kv_events=not settings.disable_kv_routing,
        migration_limit=settings.migration_limit,
        request_limit=request_limit(settings.engine_request_limit, settings.engine_queue_limit),
    )


def _model_type(words: Sequence[str]) -> ModelType | None:
    kinds = {name.lower(): kind for name, kind in ModelType.__members__.items() if kind is not ModelType.Backend}
    kinds["embeddings"] = ModelType.Embedding
    for word in words:
        if word.lower() not in kinds:
            hint = nearest(word.lower(), kinds) or f"; use {', '.join(kinds)}"
            raise ValueError(f"--dyn-endpoint-types: unknown type '{word}'{hint}")
    return reduce(operator.or_, (kinds[word.lower()] for word in words)) if words else None


class Place:
    """The endpoint of a worker; each part of a request has a component of its own."""

    def __init__(self, settings: WorkerSettings, flags: Mapping[str, Any]) -> None:
        """Raises ValueError for names that are wrong, and for `flags` that contradict each other."""
        self._namespace, self._component = settings.namespace, settings.component
        self._name = settings.endpoint or DEFAULT_ENDPOINT
        if any(mark in self._name for mark in ("://", ".")):
            whole = EndpointId.exact(self._name)
            for flag, part in (("namespace", whole.namespace), ("component", whole.component)):
                if flags.get(flag) not in (None, part):
                    raise ValueError(f"--{flag} says {flags[flag]}, --endpoint says {part}: give one")
            self._namespace, self._component, self._name = whole.namespace, whole.component, whole.name
        self(WorkerType.Aggregated)

    def __call__(self, kind: WorkerType) -> EndpointId:
        component = self._component or _COMPONENTS.get(kind, DEFAULT_COMPONENT)
        return EndpointId(self._namespace or DEFAULT_NAMESPACE, component, self._name)


async def _run(config: WorkerConfig, place: Place, network: RuntimeConfig, environ: Mapping[str, str]) -> None:
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    try:
        await run_until_signalled(runtime, _with_hint(_work(runtime, config, place, environ), config.arguments))
    except Interrupted:
        # A thread that loads a model cannot be stopped, and the event loop would wait for it.
        sys.stderr.flush()
        exit_now(INTERRUPTED)


async def _with_hint(work: Awaitable[None], arguments: Sequence[str]) -> None:
    try:
        await work
    except EngineError as error:
        if hint := misspelt(str(error), arguments):
            raise EngineError(f"{error}{hint}") from error
        raise


async def _work(runtime: DistributedRuntime, config: WorkerConfig, place: Place, environ: Mapping[str, str]) -> None:
    print(f"loading {served_name(config)} …", file=sys.stderr, flush=True)
    async with engine_started(runtime, config, environ) as started:
        if started.info.follower:
            print(f"this node of {engine_entry(config.engine).name} follows its leader", file=sys.stderr, flush=True)
            report_ready(environ)
            await runtime.wait_for_shutdown()
            return
        endpoint_id = place(started.info.worker_type)
        async with serve_started(runtime, started, config, endpoint_id) as card:
            print(f"worker for '{card.name}' at {endpoint_id}", file=sys.stderr, flush=True)
            report_ready(environ)
            await runtime.wait_for_shutdown()
