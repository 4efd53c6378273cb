"""What an engine author needs beside `dynamo.runtime`: put a model on the network, tell of its cache and load."""

from dynamo.llm.kv.publisher import KvEventPublisher
from dynamo.llm.kv_router import KvRouter, KvRouterConfig, compute_block_hash_for_seq
from dynamo.llm.load_metrics import WorkerMetricsPublisher
from dynamo.llm.register import fetch_llm, register_llm, unregister_llm
from dynamo.protocols.card import ModelInput, ModelRuntimeConfig, ModelType, WorkerType

register_model = register_llm
unregister_model = unregister_llm
fetch_model = fetch_llm

__all__ = [
    "KvEventPublisher",
    "KvRouter",
    "KvRouterConfig",
    "ModelInput",
    "ModelRuntimeConfig",
    "ModelType",
    "WorkerMetricsPublisher",
    "WorkerType",
    "compute_block_hash_for_seq",
    "fetch_llm",
    "fetch_model",
    "register_llm",
    "register_model",
    "unregister_llm",
    "unregister_model",
]
