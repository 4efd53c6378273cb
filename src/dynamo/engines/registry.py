"""From the name of an engine to a running one. Its module is imported only when it is asked for."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import attrgetter
from typing import Any

from msgspec import Struct, field, structs

from dynamo.engines.base import Engine, EngineError
from dynamo.engines.catalog import BUILT_IN, EngineEntry, find
from dynamo.model import LocalModel
from dynamo.settings import nearest, options
from dynamo.settings.worker import EngineSettings, StepTraceSettings

log = logging.getLogger(__name__)


class EngineSpec(EngineSettings, kw_only=True, frozen=True):
    """Everything a user can ask of an engine and its worker; each engine rejects what it cannot do."""

    engine: str = ""
    model: LocalModel | None = None
    """The files of `model_path`, once they are on this machine."""
    model_config: LocalModel | None = None
    """Where the tokenizer is, if not with the model: `--model-config`."""
    extra_engine_args: dict[str, Any] = field(default_factory=dict)
    """What is in the file."""
    step_trace: StepTraceSettings = StepTraceSettings()
    file: str | None = None
    """The user's Python file, for pystr and pytok."""
    arguments: list[str] = field(default_factory=list)
    """The engine's own flags: what came after `--`, or what a worker's command line has besides its own."""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def kv_events(self) -> bool:
        """Whether the worker publishes KV events."""
        return not self.disable_kv_routing

    @property
    def steps(self) -> bool:
        """Whether the worker records the engine's steps."""
        return self.step_trace.enabled


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
        make: Callable[[EngineSpec], Engine] = attrgetter(factory)(importlib.import_module(module))
    except EngineError:
        raise
    except Exception as error:  # a package without its hardware fails in ways of its own
        fix = f"; {entry.install}" if entry.install else ""
        raise EngineError(f"cannot load the engine '{entry.name}': {error}{fix}") from error
    return make


def reject_parallel(entry: EngineEntry, spec: EngineSpec) -> None:
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


def reject_arguments(name: str, spec: EngineSpec) -> None:
    """For engines without flags of their own: raises EngineError that names the first one given."""
    reject_extra_arguments(name, spec)
    if spec.arguments:
        raise EngineError(f"unknown argument '{spec.arguments[0]}': the engine '{name}' has no flags of its own")


def reject_extra_arguments(name: str, spec: EngineSpec) -> None:
    """Raises EngineError if there are settings for an engine that has none."""
    if spec.extra_engine_args:
        raise EngineError(f"--extra-engine-args changes nothing: the engine '{name}' has no settings of its own")


def own_flags(table: type[Struct], words: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """The flags of an engine and their values, by field. Raises ValueError for what is unknown or wrong."""
    known = {flag: option for option in options(table) for flag in option.flags}
    negated = {f"--no-{flag[2:]}": option for flag, option in known.items() if option.kind is bool}
    found: dict[str, tuple[str, Any]] = {}
    left = list(words)
    while left:
        flag, given, text = left.pop(0).partition("=")
        if flag in negated and not given:
            found[negated[flag].field] = flag, False
            continue
        if flag not in known:
            raise ValueError(f"unknown argument '{flag}'{nearest(flag, known)} ({', '.join(known)})")
        option = known[flag]
        if not given:
            alone = option.kind is bool and (not left or left[0].startswith("--"))
            text = "true" if alone else left.pop(0) if left else ""
        found[option.field] = flag, option.value(text, flag)
    return found


def check_engine(spec: EngineSpec) -> Callable[[EngineSpec], Engine]:
    """The factory. Raises EngineError for an engine that cannot be loaded and for GPUs or nodes it cannot use."""
    factory = load_engine(spec.engine)
    reject_parallel(engine_entry(spec.engine), spec)
    return factory


def make_engine(name: str, spec: EngineSpec) -> Engine:
    """Raises EngineError for an engine that cannot be loaded, and for a spec that it cannot follow."""
    spec = structs.replace(spec, engine=name)
    engine = check_engine(spec)(spec)
    entry = engine_entry(name)
    if engine.model_input.value != entry.takes:
        raise EngineError(f"the engine '{entry.name}' takes {engine.model_input.value}, its entry says {entry.takes}")
    return engine


def check_names(package: str, names: Iterable[str], known: tuple[str, ...]) -> str:
    """The installed version of `package`, which has all `names` (`module:attribute.attribute`).

    Raises ImportError if it is not installed, EngineError if a name is missing. A version that starts with none of
    `known` is logged, and tried.
    """
    import importlib.metadata  # most engines need none of it

    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"the package '{package}' is not installed") from None
    works = " and ".join(known)
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            reduce(getattr, attribute.split(".") if attribute else (), importlib.import_module(module))
        except (ImportError, AttributeError) as error:
            raise EngineError(
                f"{package} {version} has no {name.replace(':', '.')} ({error}); known to work: {package} {works}"
            ) from error
    if not any(version == each or version.startswith(f"{each}.") for each in known):
        log.warning("%s %s was not tried with this build; known to work: %s", package, version, works)
    return version
