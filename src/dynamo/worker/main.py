"""`python -m dynamo.ENGINE`: the command of every engine's worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

import uvloop

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, engine_entry, load_engine
from dynamo.process.children import adopt_orphans, exit_now
from dynamo.process.readiness import report_ready
from dynamo.protocols.card import WorkerType
from dynamo.protocols.errors import InvalidArgument, StartError
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.names import DEFAULT_COMPONENT, DEFAULT_ENDPOINT, DEFAULT_NAMESPACE, EndpointId
from dynamo.runtime.process import INTERRUPTED, fail, failures_as_one_line, run_until_signalled, start_or_exit
from dynamo.settings import given, nearest, options
from dynamo.settings.arguments import FlagParser
from dynamo.settings.network import NetworkSettings
from dynamo.settings.worker import StepTraceSettings, WorkerSettings
from dynamo.worker.config import check, engine_spec
from dynamo.worker.life import Interrupted, check_and_serve, start_engine
from dynamo.worker.model import served_name
from dynamo.worker.several import SeveralSettings, serve_several

_TABLES = (StepTraceSettings, NetworkSettings)
_COMPONENTS = {WorkerType.Prefill: "prefill", WorkerType.Decode: "decode"}


class OwnArguments(Protocol):
    """An engine's own flags as a table, for a command that shows and checks them."""

    @property
    def worker_type(self) -> WorkerType: ...

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> OwnArguments:
        """Raises InvalidArgument."""


def main(
    engine: str, argv: Sequence[str] | None = None, command: str | None = None, own: type[OwnArguments] | None = None
) -> None:
    """Serve `engine` until a signal comes or the engine dies. Exits: 2 for a wrong flag, 1 for what fails.

    With a table of the engine's `own` flags, several workers may share the process.
    """
    command = command or f"python -m dynamo.{engine}"
    flags, arguments = parse(command, sys.argv[1:] if argv is None else argv, own)
    table = table_of(own)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=flags["verbosity"]))
        settings = table.from_env(os.environ, **given(flags, table))
        steps = StepTraceSettings.from_env(os.environ, **given(flags, StepTraceSettings))
        spec = engine_spec(settings, engine=engine, arguments=arguments, step_trace=steps, environ=os.environ)
        place = Place(settings, flags)
        network = RuntimeConfig.from_env(os.environ, **given(flags, NetworkSettings))
        load_engine(engine)
        check(spec)
        several = None
        if own and isinstance(settings, SeveralSettings):
            several = settings.pauses(), settings.ports(own.from_spec(spec).worker_type)
    except (ValueError, InvalidArgument) as error:
        raise fail(f"{error}; see {command} --help", code=2, error=error) from None
    except StartError as error:
        raise fail(str(error), error=error) from None
    adopt_orphans()
    with failures_as_one_line():
        uvloop.run(_run(spec, place, network, several))


def table_of(own: Any) -> type[WorkerSettings]:
    return SeveralSettings if own else WorkerSettings


def flag_parser(command: str, own: Any = None) -> FlagParser:
    about = "A worker; every other flag is the engine's own." if own is None else "Workers that share a process."
    return FlagParser(command, about, table_of(own), *([own] if own else []), *_TABLES)


def parse(command: str, words: Sequence[str], own: Any = None) -> tuple[dict[str, Any], list[str]]:
    """The flags of a worker, and the rest, which is the engine's: it rejects what it does not know.

    The first word may be the model instead of a flag.
    """
    words = list(words)
    model = words.pop(0) if words and not words[0].startswith("-") else None
    cut = words.index("--") if "--" in words else len(words)
    parser = flag_parser(command, own)
    known, rest = parser.parse_known_args(words[:cut])
    flags = vars(known)
    if model and flags["model"] not in (None, model):
        parser.error(f"the model is given twice: {model} and --model {flags['model']}")
    if own:
        if rest:
            parser.refuse(rest)
        rest = [f"{each.name}={flags[each.key]}" for each in options(own) if flags[each.key] is not None]
    return flags | {"model": model or flags["model"]}, rest + words[cut + 1 :]


def misspelt(refusal: str, arguments: Sequence[str]) -> str:
    """A hint, if an engine's `refusal` names one of its `arguments` that is nearly a flag of the worker."""
    known = [flag for table in (WorkerSettings, *_TABLES) for option in options(table) for flag in option.flags]
    for word in arguments:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag in refusal and (hint := nearest(flag, known, cutoff=0.8)):
            return hint
    return ""


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


async def _run(
    spec: EngineSpec, place: Place, network: RuntimeConfig, several: tuple[list[float], list[int]] | None
) -> None:
    runtime = await start_or_exit(lambda: DistributedRuntime(config=network))
    work = serve_several(runtime, spec, place, *several) if several else _work(runtime, spec, place)
    try:
        await run_until_signalled(runtime, _with_hint(work, spec.arguments))
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


async def _work(runtime: DistributedRuntime, spec: EngineSpec, place: Place) -> None:
    print(f"loading {served_name(spec)} …", file=sys.stderr, flush=True)
    async with start_engine(runtime, spec) as started:
        if started.info.follower:
            print(f"this node of {engine_entry(spec.engine).name} follows its leader", file=sys.stderr, flush=True)
            report_ready(spec.environ)
            await runtime.wait_for_shutdown()
            return
        endpoint_id = place(started.info.worker_type)
        async with check_and_serve(runtime, started, spec, endpoint_id) as card:
            print(f"worker for '{card.name}' at {endpoint_id}", file=sys.stderr, flush=True)
            report_ready(spec.environ)
            await runtime.wait_for_shutdown()
