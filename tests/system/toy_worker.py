"""A worker that does as the request's first word says and prints what happens to it; run as a process by tests."""

import asyncio
import os

import uvloop

from dynamo.llm import ModelInput, ModelType, register_llm
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker


@dynamo_worker
async def worker(runtime: DistributedRuntime):
    endpoint = runtime.endpoint("toy.backend.generate")
    await register_llm(ModelInput.Text, ModelType.Chat, endpoint, "toy", os.environ.get("TOY_NAME", "toy"))
    print("registered", runtime.instance_id, flush=True)
    await endpoint.serve_endpoint(generate, metrics_labels=[("model", "toy")], health_check_payload=asking("check"))


def asking(text):
    return {"messages": [{"role": "user", "content": text}]}


healthy = asyncio.Event()
healthy.set()


def chunk(text, finish=None):
    return {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": finish}]}


async def generate(request, context: Context):
    words = request["messages"][-1]["content"].split()
    print("started", words[0], flush=True)
    match words:
        case ["wait"]:
            await context.async_killed_or_stopped()
            print("cancelled", flush=True)
        case ["check"]:
            await healthy.wait()
            yield chunk("well")
        case ["break"]:
            healthy.clear()
            yield chunk("broken", "stop")
        case ["mend"]:
            healthy.set()
            yield chunk("mended", "stop")
        case ["drip", seconds]:
            yield chunk("first")
            await asyncio.sleep(float(seconds))
            yield chunk(" last", "stop")
        case ["forever"]:
            while not context.is_stopped():
                yield chunk("x")
                await asyncio.sleep(0.02)
            print("cancelled", flush=True)
        case _:
            yield chunk(" ".join(words), "stop")


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(worker())
