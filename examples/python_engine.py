"""A custom engine: a worker that takes token ids and answers with its prompt.

python examples/python_engine.py MODEL         # a folder, a GGUF file or a Hugging Face id
dynamo-run in=http out=dyn                     # in another terminal
"""

import asyncio
import sys

import uvloop

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


# 1. Decorate a function to get the runtime
@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime):
    # 2. Register ourselves on the network
    component = runtime.namespace("namespace").component("component")
    await component.create_service()
    model_path = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen3-0.6B"
    endpoint = component.endpoint("endpoint")
    # The optional last argument is the model's name; by default it is derived from the path.
    await register_llm(ModelType.Backend, endpoint, model_path)

    # Start your engine here; this one needs nothing.

    # 3. Attach a request handler
    await endpoint.serve_endpoint(RequestHandler().generate)


class RequestHandler:
    async def generate(self, request):
        for token_id in request["token_ids"]:
            yield {"token_ids": [token_id]}


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
