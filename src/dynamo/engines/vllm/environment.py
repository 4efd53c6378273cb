"""An engine from its spec: which vLLM is installed, and the environment it needs, set before it is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import tempfile
from collections.abc import Iterable, MutableMapping
from pathlib import Path

from msgspec import Struct

from dynamo.engines.base import Engine, EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.visible_gpus import show_gpus
from dynamo.engines.vllm.nodes.orphans import mark

# vLLM is imported only when its environment is set, but if it is missing, that must be known before a model is fetched.
_found = importlib.util.find_spec("vllm")
if _found is None or _found.origin is None:  # a folder of that name is not vLLM
    raise ModuleNotFoundError("No module named 'vllm'", name="vllm")

log = logging.getLogger(__name__)

TESTED = ("0.24", "0.32")

_ALWAYS = {
    # A forked engine would inherit our sockets and the lock that marks this process as alive.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    # Standard output belongs to answers: in=text, in=stdin.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
_ON_CPU = {
    # "auto" pins the threads of every engine of a machine to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The sampler would be compiled by g++ at the first request with logprobs, for a minute.
    "TORCHDYNAMO_DISABLE": "1",
}
_OTHER_MODELS = ("tokenizer", "speculative_config", "hf_config_path", "model_weights", "spec_model")
"""Arguments that may name a model on the hub."""


class Build(Struct, frozen=True):
    """An installed vLLM."""

    version: str
    cpu: bool


def installed() -> Build:
    """A version that was not tested is logged, and tried."""
    build = _build()
    if not build.version.startswith(tuple(f"{minor}." for minor in TESTED)):
        log.warning("vLLM %s was not tested with this worker; %s were", build.version, " and ".join(TESTED))
    return build


def _build() -> Build:
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return Build(version, name == "vllm-cpu" or "cpu" in version)
    return Build("of an unknown version", cpu=False)


def prepare(environ: MutableMapping[str, str], build: Build, arguments: Iterable[str]) -> None:
    """Add what vLLM needs and the user has not set. `arguments` are the names of the user's own."""
    for name, value in {**_ALWAYS, **(_ON_CPU if build.cpu else {})}.items():
        environ.setdefault(name, value)
    environ.setdefault("VLLM_LOGGING_LEVEL", "INFO" if log.isEnabledFor(logging.INFO) else "WARNING")
    if not any(argument.lstrip("-").replace("-", "_").startswith(_OTHER_MODELS) for argument in arguments):
        # The model's files are on this machine.
        environ.setdefault("HF_HUB_OFFLINE", "1")


def unlike_tested(build: Build, error: Exception) -> EngineError:
    """For a vLLM that lacks a name this worker uses."""
    return EngineError(f"vLLM {build.version} does not fit this worker, tested with {' and '.join(TESTED)}: {error}")


def vllm_from_spec(spec: EngineSpec) -> Engine:
    """Imports vLLM, which takes seconds, and reads its arguments; raises EngineError for those it does not have."""
    build = installed()
    prepare(os.environ, build, [*spec.arguments, *spec.extra_engine_args])
    mark(os.environ)
    show_gpus(spec, os.environ)
    try:
        from dynamo.engines.vllm.arguments import engine_arguments
        from dynamo.engines.vllm.connector import announce
        from dynamo.engines.vllm.engine import VllmEngine
        from dynamo.engines.vllm.nodes.follower import VllmFollower
        from dynamo.engines.vllm.steps import announce_steps
    except (ImportError, AttributeError) as error:
        raise unlike_tested(build, error) from error
    sockets = tempfile.TemporaryDirectory(prefix="dynamo-vllm-", ignore_cleanup_errors=True)
    try:
        args = engine_arguments(spec, cpu=build.cpu, sockets=Path(sockets.name))
        announce_steps(os.environ, Path(sockets.name) if spec.steps else None)
        if args.disaggregation_mode != "agg":
            announce(os.environ, args.data_parallel_size)
    except BaseException:
        sockets.cleanup()
        raise
    if spec.node_rank:
        sockets.cleanup()
        return VllmFollower(args)
    return VllmEngine(args, sockets)
