"""A custom engine that speaks the OpenAI API: it gets requests and returns chunks unchanged.

python examples/python_engine_text.py
dynamo-run in=http out=dyn                     # in another terminal
"""

import asyncio

import uvloop

from dynamo.llm import ModelInput, ModelType, register_llm
from dynamo.runtime import DistributedRuntime, dynamo_worker


@dynamo_worker()
async def worker(runtime: DistributedRuntime):
    endpoint = runtime.namespace("namespace").component("text").endpoint("generate")
    await register_llm(ModelInput.Text, ModelType.Chat, endpoint, "shouter", "shouter")
    await endpoint.serve_endpoint(generate)


async def generate(request):
    words = request["messages"][-1]["content"].upper().split()
    for index, word in enumerate(words):
        delta = {"role": "assistant", "content": word if index == 0 else f" {word}"}
        yield chunk(request, delta, None)
    yield chunk(request, {}, "stop")


def chunk(request, delta, finish_reason):
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1841762283,
        "model": request["model"],
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
