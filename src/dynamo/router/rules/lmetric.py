"""LMetric (OSDI '26): tokens that the worker has to compute, times the requests it would serve."""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker


def rule(prompt: Prompt, workers: Sequence[Worker]) -> list[float]:
    return [
        (worker.waiting_tokens + prompt.tokens - worker.device * prompt.block_size) * (worker.requests + 1)
        for worker in workers
    ]
