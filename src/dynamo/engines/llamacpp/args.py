"""The engine's own arguments, each once: a flag after `--`, or a field of `--extra-engine-args`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec, own_flags
from dynamo.protocols.card import WorkerType
from dynamo.settings import Setting, options
from dynamo.settings.setting import nearest

_SMALL = 128 << 20
"""With fewer bytes of weights, threads wait for each other longer than they compute."""
_MOST_THREADS = 16


class LlamaCppArgs(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    GROUP: ClassVar[str] = "engine"

    # fmt: off
    n_gpu_layers: Annotated[int, Meta(ge=-1, le=2**31 - 1), Setting(
        "--n-gpu-layers", help="layers on the GPU, if llama.cpp was built for one; -1 is all of them")] = -1
    n_threads: Annotated[Annotated[int, Meta(ge=1, le=512)] | None, Setting(
        "--n-threads", help="threads that compute",
        default="1 for a small model, else one per core, at most 16")] = None
    n_ctx: Annotated[Annotated[int, Meta(ge=64, le=2**31 - 1)] | None, Setting(
        "--n-ctx", help="tokens that the KV cache holds, of all requests together",
        default="the context length, or 8192 if that is more")] = None
    n_batch: Annotated[int, Meta(ge=32, le=65536), Setting(
        "--n-batch", help="tokens computed in one step")] = 512
    max_num_seqs: Annotated[int, Meta(ge=1, le=200), Setting(
        "--max-num-seqs", help="requests running at once")] = 32
    cached_seqs: Annotated[int, Meta(ge=2, le=200), Setting(
        "--cached-seqs", help="finished sequences that are kept for their prefixes, at most")] = 32
    exact: Annotated[bool, Setting(
        "--exact", help="answers that depend on nothing but their request: one at a time, without cached prefixes",
        )] = False
    cache_type: Annotated[Literal["f32", "f16", "bf16", "q8_0", "q4_0"], Setting(
        "--cache-type", help="data type of the KV cache")] = "f16"
    kv_offload_gb: Annotated[float, Meta(ge=0, le=1e6), Setting(
        "--kv-offload-gb", "DYN_KVBM_CPU_CACHE_GB", "host memory for prefixes that the KV cache has no room for",
        "GB")] = 0.0
    kv_offload_disk_gb: Annotated[float, Meta(ge=0, le=1e6), Setting(
        "--kv-offload-disk-gb", "DYN_KVBM_DISK_CACHE_GB", "disk space for the same", "GB")] = 0.0
    kv_offload_dir: Annotated[str | None, Setting(
        "--kv-offload-dir", "DYN_KVBM_DISK_CACHE_DIR", "its folder, one for each worker", "FOLDER")] = None
    disaggregation_mode: Annotated[Literal["agg", "prefill", "decode"], Setting(
        "--disaggregation-mode", help="what the worker does: everything, or only prompts, or what follows them",
        )] = "agg"
    # fmt: on

    @classmethod
    def from_spec(cls, spec: EngineSpec) -> LlamaCppArgs:
        """Raises EngineError for what is unknown or wrong, before anything is loaded."""
        for flag, asked in (
            ("--tensor-parallel-size", spec.tensor_parallel_size != 1),
            ("--num-nodes", spec.num_nodes != 1),
            ("--base-gpu-id", spec.base_gpu_id != 0),
        ):
            if asked:
                raise EngineError(f"llamacpp cannot follow {flag}: it runs on one node and picks its devices itself")
        values = dict(spec.extra_engine_args)
        try:
            own = own_flags(cls, spec.arguments)
        except ValueError as error:
            raise EngineError(f"llamacpp: {error}") from None
        for name, (flag, value) in own.items():
            if values.setdefault(name, value) != value:
                raise EngineError(f"{flag} says {value}, --extra-engine-args says {values[name]}")
        for option in options(cls):
            variable = next((each for each in option.variables if spec.environ.get(each, "").strip()), None)
            if variable is not None and option.field not in values:
                try:
                    values[option.field] = option.value(spec.environ[variable].strip(), variable)
                except ValueError as error:
                    raise EngineError(f"llamacpp: {error}") from None
        for name in values:
            if name not in cls.__struct_fields__:
                known = ", ".join(cls.__struct_fields__)
                raise EngineError(
                    f"llamacpp has no argument '{name}'{nearest(str(name), cls.__struct_fields__)} ({known})"
                )
        try:
            args = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise EngineError(f"llamacpp arguments: {error}") from None
        if args.kv_offload_disk_gb and not args.kv_offload_dir:
            raise EngineError("llamacpp: --kv-offload-disk-gb needs a folder: --kv-offload-dir FOLDER")
        tiers = args.kv_offload_gb or args.kv_offload_disk_gb
        if args.exact and (tiers or args.disaggregation_mode != "agg"):
            raise EngineError("llamacpp: --exact computes each prompt anew: it goes with no tiers and no other worker")
        if args.sequences > 256:
            raise EngineError("llamacpp: max_num_seqs and cached_seqs must be at most 256 together")
        if args.sequences > args.n_batch:
            # llama.cpp ends the process otherwise.
            raise EngineError("llamacpp: n_batch must be at least max_num_seqs and cached_seqs together")
        return args

    @property
    def sequences(self) -> int:
        """Those of requests, of prompts held for other workers, and one to copy with."""
        return self.max_num_seqs + self.cached_seqs

    @property
    def worker_type(self) -> WorkerType:
        return WorkerType.Aggregated if self.disaggregation_mode == "agg" else WorkerType(self.disaggregation_mode)

    def threads(self, path: Path) -> int:
        if self.n_threads is not None:
            return self.n_threads
        return 1 if path.stat().st_size < _SMALL else min(len(os.sched_getaffinity(0)), _MOST_THREADS)


def gguf_file(spec: EngineSpec) -> Path:
    """The weights: the GGUF file itself, or the only one in the model's folder."""
    if spec.model is None:
        raise EngineError("llamacpp needs a model: a GGUF file, or a folder with one in it")
    path = spec.model.path
    if path.is_file():
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        which = f"has {len(found)} of them: name one" if found else "has none: convert it with llama.cpp's tools"
        raise EngineError(f"llamacpp loads GGUF files, and {path} {which}")
    return found[0]
