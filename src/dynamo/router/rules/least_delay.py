"""The least delay added to everybody: the prompt's own wait, and its computation for itself and all requests there."""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker


def milliseconds(tokens: float) -> float:
    """The prefill time of a mid-size model on one GPU; put your engine's curve here."""
    return (4.2e-7 * tokens + 1.52e-2) * tokens + 16.5 if tokens else 0.0


def rule(prompt: Prompt, workers: Sequence[Worker]) -> list[float]:
    costs = []
    for worker in workers:
        own = milliseconds(prompt.tokens - worker.cached * prompt.block_size)
        costs.append(milliseconds(worker.waiting_tokens) + own * (1 + worker.requests))
    return costs
