import asyncio
import os

import uvloop

from dynamo.llm import ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


# 1. Decorate a function to get the runtime
#
@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime):

    # 2. Register ourselves on the network
    #
    component = runtime.namespace("namespace").component("component")
    await component.create_service()
    model_path = os.environ["MODEL_PATH"]
    model_type = ModelType.Backend
    endpoint = component.endpoint("endpoint")
    # Optional last param to register_llm is model_name. If not present derives it from model_path
    await register_llm(model_type, endpoint, model_path)

    # Initialize your engine here
    engine = None

    # 3. Attach request handler
    #
    await endpoint.serve_endpoint(RequestHandler(engine).generate)


class RequestHandler:
    def __init__(self, engine): ...

    async def generate(self, request):
        # Call the engine
        # yield result dict
        print("generating", flush=True)
        for token in request["token_ids"][1:]:
            yield {"token_ids": [token]}
            await asyncio.sleep(0)
        yield {"token_ids": [], "finish_reason": "stop"}


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
