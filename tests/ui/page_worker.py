"""A worker with models that do what they are asked: `talker` takes tokens, `painter` takes messages with pictures.

`embedder` embeds texts. The others repeat the last message, unless it begins with a word of `answer`. SLOW goes on
until the client leaves, PACED is not sent at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from dynamo.llm.register import register_card
from dynamo.protocols.card import ModelType
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker
from support.toys import EOS, embed_tokens, text_card, toy_card, toy_tokenizer

TURN = re.compile(r"<\|im_start\|>(user|tool)\n(.*?)<\|im_end\|>", re.DOTALL)
CALL = re.compile(r"CALL (\S+) (\{.*\})", re.DOTALL)
TOKENIZER = toy_tokenizer()


def answer(role: str, text: str) -> str:
    if role == "tool":
        return "The tool said: " + re.sub(r"</?tool_response>", "", text).strip()
    if found := CALL.match(text):
        return f'<tool_call>\n{{"name": "{found[1]}", "arguments": {found[2]}}}\n</tool_call>'
    if text.startswith("THINK"):
        return f"<think>Let me **see**.</think>{text[5:].strip()}"
    return text.strip()


async def talk(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    prompt = TOKENIZER.decode(request["token_ids"], skip_special_tokens=False)
    role, text = TURN.findall(prompt)[-1]
    ids = TOKENIZER.encode(answer(role, text))
    if text.startswith("FAIL"):
        yield {"token_ids": ids[:1]}
        raise RuntimeError("the engine broke")
    while text.startswith("SLOW") and not context.is_stopped():
        yield {"token_ids": ids[:1]}
        await asyncio.sleep(0.01)
    limit = request["stop_conditions"]["max_tokens"] or len(ids) + 1
    for id in ids[:limit]:
        yield {"token_ids": [id]}
        if text.startswith("PACED"):
            await asyncio.sleep(0.002)
    eos = TOKENIZER.id_of(EOS)
    usage = {"prompt_tokens": len(request["token_ids"]), "prompt_tokens_details": {"cached_tokens": 3}}
    yield {"token_ids": [eos], "finish_reason": "length" if len(ids) > limit else "eos", "completion_usage": usage}


async def paint(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    head = {"id": "chatcmpl-painter", "object": "chat.completion.chunk", "created": 1, "model": request["model"]}
    content = request["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    pictures = [part for part in parts if part["type"] == "image_url"]
    text = "".join(part["text"] for part in parts if part["type"] == "text") or f"{len(pictures)} pictures"
    yield {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    folder = Path(os.environ["MODEL_FOLDER"])
    names = ("talker", "embedder", "painter")
    talker, embedder, painter = (runtime.endpoint(f"dynamo.{name}.generate") for name in names)
    await register_card(talker, toy_card(folder, "talker", tool_call_parser="hermes", reasoning_parser="basic"))
    # Before the painter, for which tests wait.
    await register_card(embedder, toy_card(folder, "embedder", ModelType.Embedding))
    await register_card(painter, text_card("painter"))
    print("the page's worker is ready", file=sys.stderr, flush=True)
    await asyncio.gather(
        talker.serve_endpoint(talk), embedder.serve_endpoint(embed_tokens), painter.serve_endpoint(paint)
    )


if __name__ == "__main__":
    uvloop.run(worker())
