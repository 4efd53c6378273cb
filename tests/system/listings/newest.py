import asyncio
import os

import uvloop

from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker
from dynamo.runtime.logging import configure_dynamo_logging

configure_dynamo_logging()


@dynamo_worker()
async def worker(runtime: DistributedRuntime):
    endpoint = runtime.endpoint("namespace.component.endpoint")
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        os.environ["MODEL_PATH"],
        worker_type=WorkerType.Aggregated,
    )
    await endpoint.serve_endpoint(generate, graceful_shutdown=True, metrics_labels=[("model", "toy")])


async def generate(request, context):
    print("generating", flush=True)
    for token in request["token_ids"][1:]:
        yield {"token_ids": [token]}
        await asyncio.sleep(0)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
