"""An engine that speaks the OpenAI API: `dynamo-run in=http out=pystr:examples/engines/pystr_engine.py`."""

import asyncio


def chunk(content, finish_reason=None):
    return {
        "id": "1",
        "choices": [
            {"index": 0, "delta": {"content": content, "role": "assistant"}, "finish_reason": finish_reason},
        ],
        "created": 1841762283,
        "model": "Llama-3.2-1B-Instruct",
        "system_fingerprint": "local",
        "object": "chat.completion.chunk",
    }


async def generate(request):
    for word in ("The", " capital", " of", " France", " is", " Paris", "."):
        yield chunk(word)
        await asyncio.sleep(0.1)
    yield chunk("", "stop")
