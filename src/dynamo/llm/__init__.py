"""What an engine author needs beside `dynamo.runtime`: describe a model and put it on the network."""

from dynamo.llm.register import fetch_llm, register_llm, unregister_llm
from dynamo.protocols.card import ModelInput, ModelType, WorkerType
from dynamo.protocols.card import RuntimeConfig as ModelRuntimeConfig

register_model = register_llm
unregister_model = unregister_llm
fetch_model = fetch_llm

__all__ = [
    "ModelInput",
    "ModelRuntimeConfig",
    "ModelType",
    "WorkerType",
    "fetch_llm",
    "fetch_model",
    "register_llm",
    "register_model",
    "unregister_llm",
    "unregister_model",
]
