"""A worker for embeddings: the first number is how many tokens there were, the second is 1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.llm import ModelInput, ModelType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker


async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield {"embedding": [float(len(request["token_ids"])), 1.0]}


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    endpoint = runtime.namespace("dynamo").component("backend").endpoint("embed")
    await register_model(ModelInput.Tokens, ModelType.Embedding, endpoint, "tiny", "embedding")
    await endpoint.serve_endpoint(generate)


uvloop.run(worker())
