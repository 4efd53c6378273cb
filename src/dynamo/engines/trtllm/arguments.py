"""The arguments of `tensorrt_llm.LLM`: flags with the names of its fields, `--extra-engine-args`, and dynamo's flags.

`--max-batch-size 64` sets a field, `--kv-cache-config.host-cache-size 0` a nested one; values are YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from tensorrt_llm.llmapi import KvCacheConfig
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs, TrtLlmArgs

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.trtllm.compiled import built_with, is_compiled
from dynamo.model import build_card
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import ModelError
from dynamo.settings import nearest

BLOCK_TOKENS = 32
EVENT_BUFFER = 8192
"""Events that TensorRT-LLM keeps between two polls; lost ones cost the router all that it knows of this worker."""

_SERVE_NAMES = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
    "free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
}
"""Names by which `trtllm-serve` takes some of them."""
_NESTED = {"kv_cache_config": KvCacheConfig}
_FLAGS = {
    ("max_seq_len",): "--context-length",
    ("tensor_parallel_size",): "--tensor-parallel-size",
    ("kv_cache_config", "tokens_per_block"): "--kv-cache-block-size",
}

Path = tuple[str, ...]
Fields = Mapping[str, Any]


def llm_arguments(spec: EngineSpec) -> dict[str, Any]:
    """Flags win over the file of `--extra-engine-args`; neither may contradict a flag of dynamo. Loads nothing."""
    if spec.model is None:
        raise EngineError("TensorRT-LLM needs a model: a folder or a Hugging Face id")
    if spec.model.is_gguf:
        raise EngineError("TensorRT-LLM does not read GGUF files; use out=llamacpp")
    if spec.num_nodes > 1:
        raise EngineError(
            "TensorRT-LLM spreads over nodes by MPI, not by --num-nodes: start this command with mpirun or srun and "
            "trtllm-llmapi-launch"
        )
    fields = (TrtLlmArgs if is_compiled(spec.model.path) else TorchLlmArgs).model_fields
    given = _flatten(spec.extra_engine_args, "--extra-engine-args: ", fields)
    given |= dict(_from_words(spec.arguments, fields))
    asked = _from_flags(spec)
    for path, value in asked.items():
        if given.get(path, value) != value:
            raise EngineError(
                f"{_FLAGS[path]} says {value}, TensorRT-LLM's {'.'.join(path)} says {given[path]}: give one"
            )
    merged = {**_defaults(spec), **asked, **given}
    # TensorRT-LLM compiles grammars with its tokenizer, and needs it for nothing else.
    merged.setdefault(("skip_tokenizer_init",), not merged.get(("guided_decoding_backend",)))
    arguments: dict[str, Any] = {"model": str(spec.model.path)}
    if spec.model_config is not None and not merged["skip_tokenizer_init",]:
        arguments["tokenizer"] = str(spec.model_config.path)
    for path, value in merged.items():
        place = arguments
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return arguments


def _from_words(words: list[str], fields: Fields) -> Iterator[tuple[Path, Any]]:
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            raise EngineError(f"TensorRT-LLM: unexpected argument '{word}'")
        name, equals, text = word[2:].partition("=")
        if not equals:
            text = left.pop(0) if left and not left[0].startswith("--") else "true"
        path = _path(name, f"unknown argument '--{name}': ", fields)
        try:
            yield path, yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise EngineError(f"TensorRT-LLM: --{name}: {str(error).splitlines()[0]}") from None


def _flatten(values: Mapping[str, Any], where: str, fields: Fields, above: str = "") -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for key, value in values.items():
        path = _path(f"{above}{key}", where, fields)
        if path[-1] in _NESTED and isinstance(value, Mapping):
            found |= _flatten(value, where, fields, f"{path[-1]}.")
        else:
            found[path] = value
    return found


def _path(name: str, where: str, fields: Fields | None) -> Path:
    """Raises EngineError for a name that TensorRT-LLM does not have."""
    dotted = name.replace("-", "_")
    path = tuple(_SERVE_NAMES.get(dotted, dotted).split("."))
    for at, part in enumerate(path):
        if fields is not None and part not in fields:
            raise EngineError(f"{where}TensorRT-LLM has no argument '{'.'.join(path)}'{nearest(part, list(fields))}")
        fields = _NESTED[part].model_fields if part in _NESTED else None
        if fields is None and at + 2 < len(path):
            raise EngineError(f"{where}'{name}': give {part} as one YAML value")
    if path == ("model",):
        raise EngineError(f"{where}the model is given by dynamo's own flags")
    return path


def _from_flags(spec: EngineSpec) -> dict[Path, Any]:
    asked: dict[Path, Any] = {}
    if spec.context_length is not None:
        asked["max_seq_len",] = spec.context_length
    if spec.tensor_parallel_size != 1:
        asked["tensor_parallel_size",] = spec.tensor_parallel_size
    if spec.kv_cache_block_size is not None:
        asked["kv_cache_config", "tokens_per_block"] = spec.kv_cache_block_size
    return asked


def _defaults(spec: EngineSpec) -> dict[Path, Any]:
    assert spec.model is not None
    compiled = is_compiled(spec.model.path)
    defaults: dict[Path, Any] = {("kv_cache_config", "tokens_per_block"): BLOCK_TOKENS}
    if not compiled:  # a compiled engine reports its steps unasked
        defaults["enable_iter_perf_stats",] = True
    if spec.kv_events:
        defaults["kv_cache_config", "event_buffer_max_size"] = EVENT_BUFFER
    if compiled:
        return defaults | built_with(spec.model.path)
    if (context := _context(spec)) is not None:
        defaults["max_seq_len",] = context
    return defaults


def _context(spec: EngineSpec) -> int | None:
    """The model's own context: a request without a limit gets all that is left of it, which must then be known."""
    described_by = spec.model_config or spec.model
    assert described_by is not None
    try:
        return build_card(described_by, name="-", model_type=ModelType.Chat).context_length
    except (ModelError, OSError, ValueError):
        return None
