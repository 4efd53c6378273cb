"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from msgspec import structs

from dynamo.frontend.answers.answer import json_response, stream_response
from dynamo.frontend.answers.chunks import Chunks, TextChoiceWriter
from dynamo.frontend.answers.nvext import Extras, annotation_events, with_headers
from dynamo.frontend.answers.sse import EventStream
from dynamo.frontend.measure.exchange import EXCHANGE
from dynamo.model import Tokenizer
from dynamo.pipeline.postprocess import prompt_logprobs
from dynamo.pipeline.preprocess import Prepared, refuse_guidance
from dynamo.pipeline.validate import validate_completion
from dynamo.protocols.card import ModelType
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.serving.collect import Collected, Whole, text_answer
from dynamo.serving.generation import Generation
from dynamo.serving.relay import relay_response

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


async def completions(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    body = await frontend.body(request)
    asked = frontend.bodies.completion.decode(body, frontend.ignore_unknown_fields)
    validate_completion(asked)
    asked.nvext = with_headers(asked.nvext, request.headers)
    model = frontend.model(asked.model, ModelType.Completions)
    context = frontend.context(request)
    generation = Generation(model, context, request[EXCHANGE])
    extras = Extras(asked.nvext, generation)
    created = int(time.time())
    try:
        if model.preprocessor is None:
            refuse_guidance(model.card, asked)
            raw = msgspec.json.decode(body)
            if asked.nvext is not None:
                raw["nvext"] = msgspec.to_builtins(asked.nvext)
            before = annotation_events(asked.nvext, context.id())
            return await relay_response(request, request_id, generation, raw, before)
        prompts = await model.preprocessor.completion(asked)
        tokenizer = model.preprocessor.model.tokenizer
        head: dict[str, Any] = {"id": f"cmpl-{context.id()}", "created": created, "model": model.name}
        if not asked.stream:
            whole, best = await gather_best(generation, asked, prompts)
            answer = text_answer(
                best,
                whole.usage,
                **head,
                tokenizer=tokenizer,
                echo=[echo(asked, one, tokenizer) for one in prompts for _ in range(asked.n or 1)],
                logprobs=asked.logprobs,
                nvext=extras.tell(whole.stop_reason),
            )
            return json_response(answer, request_id)
        n = asked.n or 1
        chunks = Chunks(
            EventStream(),
            **head,
            object="text_completion",
            choices=len(prompts) * n,
            per_prompt=n,
            options=asked.stream_options,
            tokenizer=tokenizer,
            top_logprobs=asked.logprobs or 0,
            extras=extras,
            request_id=request_id,
        )
        for index in range(len(prompts) * n):
            one = prompts[index // n]
            echoed = prompt_logprobs(one.request.token_ids) if _echoes_logprobs(asked) else None
            choice = TextChoiceWriter(chunks, index, echo=echo(asked, one, tokenizer), echoed=echoed)
            await generation.add(one.choice(index % n), choice)
        before = annotation_events(asked.nvext, context.id(), prompts[0])
        return await stream_response(request, request_id, chunks, before)
    finally:
        await generation.close()


async def gather_best(
    generation: Generation,
    asked: CompletionRequest,
    prompts: list[Prepared],
    make: Callable[[Whole, int], Collected] = Collected,
) -> tuple[Whole, list[Collected]]:
    """All that was generated, and of each prompt's choices the likeliest `n`."""
    n = asked.n or 1
    made = asked.best_of or n
    whole = Whole(len(prompts) * made, made, make)
    for index, choice in enumerate(whole.choices):
        one = prompts[index // made].choice(index % made)
        if made > n:
            wanted = max(1, asked.logprobs or 0)
            one.request.output_options = structs.replace(one.request.output_options, logprobs=wanted)
        if _echoes_logprobs(asked):
            choice.prompt_logprobs(prompt_logprobs(one.request.token_ids))
        await generation.add(one, choice)
    await whole.done()
    best = []
    for start in range(0, len(whole.choices), made):
        of_one_prompt = whole.choices[start : start + made]
        best += sorted(of_one_prompt, key=lambda one: -one.likelihood)[:n] if made > n else of_one_prompt
    return whole, best


def _echoes_logprobs(asked: CompletionRequest) -> bool:
    return bool(asked.echo) and asked.logprobs is not None


def echo(asked: CompletionRequest, prepared: Prepared, tokenizer: Tokenizer) -> str:
    """What each answer to this prompt begins with."""
    if not asked.echo:
        return ""
    return tokenizer.decode(prepared.request.token_ids) if prepared.prompt is None else prepared.prompt
