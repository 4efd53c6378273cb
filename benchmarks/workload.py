"""Conversations as HTTP requests: builds them, sends them, and measures how evenly they used the workers."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from tokenizers import Tokenizer

from kv_fleet import Prompt
from kv_placement import BLOCK, Variant, optimum
from load import Reply, connect, http_request
from prompts import MODEL, Prompts

USER, OUT = 50, 32


class Conversation(Struct):
    start: float
    bodies: list[bytes]
    think: list[float]


class Workload:
    """The requests of all conversations, and the share of their tokens that could at best be cached."""

    def __init__(
        self,
        variant: Variant,
        seed: int,
        tokenizer: Tokenizer,
        *,
        burst: int = 0,
        block: int = BLOCK,
        extra_fields: Sequence[str] = ("worker_id",),
    ) -> None:
        draw, texts = random.Random(seed), Prompts(seed)
        systems = [texts.next(variant.system_tokens) for _ in range(variant.systems)]
        histories = []
        for number in range(variant.convs):
            turns = [(texts.next(USER), texts.next(OUT)) for _ in range(variant.turns)]
            think = [draw.expovariate(1 / variant.think) for _ in turns]
            histories.append((systems[number % variant.systems], turns, think))
        draw.shuffle(histories)
        self.conversations: list[Conversation] = []
        prompts = []
        # Special tokens surround each message, so messages can be tokenized one by one.
        system_tokens = {system: _tokens(tokenizer, "system", system) for system in systems}
        reply = tokenizer.encode("<|im_start|>assistant\n").ids
        for number, (system, turns, think) in enumerate(histories):
            messages = [{"role": "system", "content": system}]
            tokens = list(system_tokens[system])
            bodies = []
            for asked, answered in turns:
                messages.append({"role": "user", "content": asked})
                tokens += _tokens(tokenizer, "user", asked)
                bodies.append(request(messages, extra_fields))
                prompts.append(Prompt.of(tokens + reply, block))
                messages.append({"role": "assistant", "content": answered})
                tokens += _tokens(tokenizer, "assistant", answered)
            start = number // burst if burst else number * variant.stagger
            self.conversations.append(Conversation(float(start), bodies, think))
        self.prompt_tokens = sum(prompt.length for prompt in prompts)
        self.optimum = optimum(prompts, block)


def request(messages: list[dict[str, str]], extra_fields: Sequence[str] = ("worker_id",)) -> bytes:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": OUT,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "nvext": {"extra_fields": list(extra_fields)},
    }
    return http_request(json.dumps(body, separators=(",", ":")).encode())


def _tokens(tokenizer: Tokenizer, role: str, content: str) -> list[int]:
    return tokenizer.encode(f"<|im_start|>{role}\n{content}<|im_end|>\n").ids


async def converse(urls: Sequence[str], conversations: list[Conversation]) -> list[Reply]:
    """Run all conversations; with several frontends, turns alternate between them."""
    replies: list[Reply] = []

    async def run(number: int, conversation: Conversation) -> None:
        await asyncio.sleep(conversation.start)
        connections = [await connect(url) for url in urls]
        for turn, (body, think) in enumerate(zip(conversation.bodies, conversation.think, strict=True)):
            at = (number + turn) % len(urls)
            if not connections[at].open:
                connections[at] = await connect(urls[at])
            replies.append(await connections[at].ask(body, stream=True))
            await asyncio.sleep(think)
        for connection in connections:
            connection.close()

    await asyncio.gather(*(run(number, conversation) for number, conversation in enumerate(conversations)))
    return replies


def uneven_requests(replies: Sequence[Reply], workers: int) -> float:
    """Requests on the fullest worker divided by the mean, weighted by time."""
    changes = sorted([(r.sent, 1, r.worker) for r in replies] + [(r.ended, -1, r.worker) for r in replies])
    now: Counter[int] = Counter()
    fullest = every = 0.0
    for (when, by, worker), (until, _, _) in itertools.pairwise(changes):
        now[worker] += by
        fullest += (until - when) * max(now.values())
        every += (until - when) * now.total()
    return fullest * workers / every if every else float("nan")


def uneven_tokens(replies: Sequence[Reply], workers: int) -> float:
    """Tokens of the worker with the most divided by the mean."""
    tokens: Counter[int] = Counter()
    for reply in replies:
        tokens[reply.worker] += reply.prompt_tokens + reply.tokens
    return max(tokens.values()) * workers / tokens.total() if tokens else float("nan")
