"""Which vLLM is installed, and the environment it needs, which must be set before it is imported."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable, MutableMapping

from msgspec import Struct

from dynamo.engines.base import EngineError

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
