"""What an engine author needs beside `dynamo.runtime`: put a model on the network, publish its cache and load."""

import importlib
from typing import Any

from dynamo.compat.missing_names import missing
from dynamo.kv.publish.load_metrics import WorkerMetricsPublisher
from dynamo.kv.publish.publisher import KvEventPublisher
from dynamo.llm.exceptions import HttpError, RouterQueueLimitExceeded
from dynamo.llm.kv_router import KvRouter, KvRouterConfig, compute_block_hash_for_seq
from dynamo.llm.radix_tree import OverlapScores, RadixTree
from dynamo.llm.register import fetch_llm, register_llm, unregister_llm
from dynamo.llm.router_config import RouterConfig, RouterMode
from dynamo.model.adapter import lora_name_to_id
from dynamo.protocols.card import ModelInput, ModelRuntimeConfig, ModelType, WorkerType

register_model = register_llm
unregister_model = unregister_llm
fetch_model = fetch_llm

__all__ = [
    "HttpError",
    "KvEventPublisher",
    "KvRouter",
    "KvRouterConfig",
    "ModelInput",
    "ModelRuntimeConfig",
    "ModelType",
    "OverlapScores",
    "RadixTree",
    "RouterConfig",
    "RouterMode",
    "RouterQueueLimitExceeded",
    "WorkerMetricsPublisher",
    "WorkerType",
    "compute_block_hash_for_seq",
    "fetch_llm",
    "fetch_model",
    "lora_name_to_id",
    "register_llm",
    "register_model",
    "unregister_llm",
    "unregister_model",
]

# What stands on the frontend and on dynamo-run: loaded by the programs that use it, which most workers do not.
_EMBEDDED = {
    "EngineConfig": "entrypoint",
    "EngineType": "entrypoint",
    "EntrypointArgs": "entrypoint",
    "HttpAsyncEngine": "http_service",
    "HttpService": "http_service",
    "KserveGrpcService": "kserve_service",
    "MockEngineArgs": "entrypoint",
    "PythonAsyncEngine": "http_service",
    "make_engine": "entrypoint",
    "run_input": "entrypoint",
}


def __getattr__(name: str) -> Any:
    if name in _EMBEDDED:
        return getattr(importlib.import_module(f"dynamo.compat.embedded.{_EMBEDDED[name]}"), name)
    raise missing(__name__, name)
