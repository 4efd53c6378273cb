"""A model that does what it is asked, for `out=pytok:`: it calls what `CALL NAME {…}` says, and repeats tool results.

It thinks first where the last message begins with THINK, and otherwise says the last message again. The tokens of a
prompt that occurred in it before are likely, all others are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dynamo.model import Tokenizer

TOKENIZER = Tokenizer.from_file(Path(os.environ["SCRIPTED_TOKENIZER"]))
TURN = re.compile(r"<\|im_start\|>(user|tool)\n(.*?)<\|im_end\|>", re.DOTALL)
"""Agents also add reminders of the system after the user's words."""
CALL = re.compile(r"CALL (\S+) (\{.*?\})(?=\s|$|<)", re.DOTALL)


def answer(prompt: str) -> str:
    turns = TURN.findall(prompt)
    role, text = turns[-1] if turns else ("user", prompt)
    if role == "tool":
        return "The tool said: " + text.replace("<tool_response>", "").replace("</tool_response>", "").strip()
    if found := CALL.findall(text):
        name, arguments = found[-1]
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    if text.startswith("THINK"):
        return f"<think>Let me see.</think>{text[5:].strip()}"
    return text.strip()


def prompt_logprobs(ids: list[int]) -> list[list[dict[str, Any]] | None]:
    known = [-0.1 if id in ids[:at] else -5.0 for at, id in enumerate(ids)]
    return [None, *([{"token_id": id, "logprob": value}] for id, value in zip(ids[1:], known[1:], strict=True))]


async def generate(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    if request["output_options"]["prompt_logprobs"] is not None:
        yield {"token_ids": [], "prompt_logprobs": prompt_logprobs(request["token_ids"])}
    ids = TOKENIZER.encode(answer(TOKENIZER.decode(request["token_ids"], skip_special_tokens=False)))
    limit = request["stop_conditions"]["max_tokens"] or len(ids) + 1
    for id in ids[:limit]:
        yield {"token_ids": [id]}
    yield {"token_ids": [], "finish_reason": "length" if len(ids) > limit else "stop"}
