"""An engine that works on token ids: `dynamo-run out=pytok:examples/engines/pytok_engine.py --model-path MODEL`.

In Llama 3's vocabulary the ids read "The capital of France is Paris."
"""

import asyncio


async def generate(request):
    for id in (791, 6864, 315, 9822, 374, 12366):
        yield {"token_ids": [id]}
        await asyncio.sleep(0.1)
    yield {"token_ids": [13]}
