"""Pure functions that turn what an engine step says of one request into an `EngineOutput`."""

from __future__ import annotations

from typing import Any

from dynamo.protocols.engine import EngineOutput, TopLogprob, Usage

_FINISH = ("stop", "length", "cancelled", "error: vLLM failed to run this request", "stop")
"""By vLLM's number: stop, length, abort, error, repetition."""
ABORTED = 2

PromptLogprobs = list[list[TopLogprob] | None]


def finish_reason(reason: int) -> str:
    return _FINISH[reason] if 0 <= reason < len(_FINISH) else f"error: vLLM ended with reason {reason}"


def sampled(output: EngineOutput, logprobs: Any, shown: int) -> None:
    """Add the log probabilities of the step's tokens, and of the `shown` likeliest at each place.

    vLLM puts the sampled token first, then the likeliest in their order, the sampled one among them or not.
    """
    ids, values, ranks = logprobs[0].tolist(), logprobs[1].tolist(), logprobs[2].tolist()
    output.log_probs = [row[0] for row in values]
    output.top_logprobs = [_row(*place, shown) for place in zip(ids, values, ranks, strict=True)]


def prompt(tensors: Any, shown: int) -> list[list[TopLogprob]]:
    """One list for each prompt token after the first: the token itself, then the likeliest in its place."""
    ids, values, ranks = tensors[0].tolist(), tensors[1].tolist(), tensors[2].tolist()
    return [_row(*place, shown) for place in zip(ids, values, ranks, strict=True)]


def _row(ids: list[int], values: list[float], rank: int, shown: int) -> list[TopLogprob]:
    """Without the second mention of the first token."""
    count = len(ids) if shown < 0 else shown + 1
    row = [TopLogprob(token_id=ids[0], logprob=values[0], rank=rank)]
    row += [TopLogprob(token_id=ids[at], logprob=values[at], rank=at) for at in range(1, count) if ids[at] != ids[0]]
    return row


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details={"cached_tokens": cached_tokens},
    )
