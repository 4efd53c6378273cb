"""TensorRT-LLM, which a user installs beside this package. Written after its published API; not run by this project."""

from __future__ import annotations

import importlib.util
import os

from msgspec import structs

from dynamo.engines.base import Engine
from dynamo.engines.registry import EngineSpec, check_names
from dynamo.engines.visible_gpus import show_gpus
from dynamo.protocols.card import WorkerType

KNOWN = ("1.2",)
"""Versions whose published API this was written after."""
NAMES = (
    "tensorrt_llm:LLM.generate_async",
    "tensorrt_llm:LLM.get_kv_cache_events_async",
    "tensorrt_llm:LLM.get_stats_async",
    "tensorrt_llm:LLM.shutdown",
    "tensorrt_llm:SamplingParams",
    "tensorrt_llm.llmapi:DisaggregatedParams",
    "tensorrt_llm.llmapi:GuidedDecodingParams",
    "tensorrt_llm.llmapi:KvCacheConfig.model_fields",
    "tensorrt_llm.llmapi:RequestError",
    "tensorrt_llm.llmapi.llm_args:TorchLlmArgs.model_fields",
    "tensorrt_llm.llmapi.llm_args:TrtLlmArgs.model_fields",
)

# TensorRT-LLM takes long to import, but if it is missing, that must be known before a model is fetched.
_found = importlib.util.find_spec("tensorrt_llm")
if _found is None or _found.origin is None:  # a folder of that name is not TensorRT-LLM
    raise ModuleNotFoundError("No module named 'tensorrt_llm'", name="tensorrt_llm")


def trtllm_from_spec(spec: EngineSpec) -> Engine:
    """Imports TensorRT-LLM and reads its arguments; raises EngineError for those it does not have."""
    show_gpus(spec, os.environ)
    check_names("tensorrt_llm", NAMES, KNOWN)
    from dynamo.engines.trtllm.arguments import llm_arguments
    from dynamo.engines.trtllm.engine import TrtllmEngine
    from dynamo.engines.trtllm.handoff import take_role

    role, words = take_role(spec.arguments)
    arguments = llm_arguments(structs.replace(spec, arguments=words))
    if role is not WorkerType.Aggregated:
        arguments.setdefault("cache_transceiver_config", {"backend": "DEFAULT"})
    return TrtllmEngine(arguments, kv_events=spec.kv_events, role=role)
