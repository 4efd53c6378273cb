"""How a request is continued by another worker: prompt and generated tokens together become the new prompt.

A guided answer is continued like that by engines that take its tokens into their grammar. Other engines begin it again
(`repetition`), which works where they decide every token the same way again: sampled answers need a seed for that.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from dynamo.protocols.engine import PreprocessedRequest, Usage

SEED_BITS = 31
"""The bits of the seeds drawn here: all engines take them."""

# Of the system: processes that were forked from one draw different seeds, also from one that is seeded in tests.
_chance = random.SystemRandom()


def continuation(request: PreprocessedRequest, generated: Sequence[int]) -> PreprocessedRequest:
    """The request that continues after `generated`; its limits shrink by what was already delivered."""
    conditions = request.stop_conditions
    return structs.replace(
        request,
        token_ids=[*request.token_ids, *generated],
        resumed_tokens=request.resumed_tokens + len(generated),
        stop_conditions=structs.replace(
            conditions,
            max_tokens=_remaining(conditions.max_tokens, generated),
            min_tokens=_remaining(conditions.min_tokens, generated),
        ),
    )


def is_complete(request: PreprocessedRequest, generated: Sequence[int]) -> bool:
    """Whether the last of the generated tokens ended the answer."""
    if not generated:
        return False
    conditions = request.stop_conditions
    if conditions.max_tokens is not None and len(generated) >= conditions.max_tokens:
        return True
    ends = (conditions.stop_token_ids or []) + (conditions.stop_token_ids_hidden or [])
    return generated[-1] in ends and len(generated) >= (conditions.min_tokens or 0)


def is_guided(request: Any) -> bool:
    return isinstance(request, PreprocessedRequest) and request.sampling_options.guided_decoding is not None


def is_repeatable(request: PreprocessedRequest) -> bool:
    """Whether the request says how each token is chosen, so that another worker chooses the same."""
    sampling = request.sampling_options
    return sampling.temperature == 0 or sampling.top_k == 1 or sampling.seed is not None


def repeatable(request: PreprocessedRequest, seed: int | None = None) -> PreprocessedRequest:
    """The request with a seed, drawn for it unless given, if it has none: its answer is as random as before, and can be
    repeated."""
    if is_repeatable(request):
        return request
    drawn = _chance.getrandbits(SEED_BITS) if seed is None else seed
    seeded = structs.replace(request.sampling_options, seed=drawn)
    return structs.replace(request, sampling_options=seeded)


def correct_usage(usage: Usage, tokens: int) -> None:
    """Correct the usage of a continuation, whose worker counted what earlier workers generated as prompt.

    What that worker found cached may come from this very request, and what the first worker found is not known: no
    token of the client's prompt is counted as cached.
    """
    usage.prompt_tokens = tokens
    if usage.prompt_tokens_details and "cached_tokens" in usage.prompt_tokens_details:
        usage.prompt_tokens_details = {**usage.prompt_tokens_details, "cached_tokens": 0}


def limit_cached(usage: Usage, most: int) -> None:
    """What was computed for this request was not cached, though its worker may say so."""
    cached = cached_tokens(usage.prompt_tokens_details)
    if cached is not None:
        usage.prompt_tokens_details = {**(usage.prompt_tokens_details or {}), "cached_tokens": min(cached, most)}


def cached_tokens(details: Mapping[str, Any] | None) -> int | None:
    """The cached tokens in an engine's `prompt_tokens_details`; None where they do not say it."""
    found = (details or {}).get("cached_tokens")
    return found if isinstance(found, int) else None


def _remaining(limit: int | None, generated: Sequence[int]) -> int | None:
    return None if limit is None else max(0, limit - len(generated))
