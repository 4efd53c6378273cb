"""SGLang's cache-aware rule: the longest prefix if it is long enough, and the fewest requests when loads part.

Its defaults: 30 % of the prompt; 64 requests more than the least loaded worker, and half as many again.
"""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker

LEAST_MATCH = 0.3
IMBALANCE = 64
RATIO = 1.5


def rule(prompt: Prompt, workers: Sequence[Worker]) -> list[float]:
    requests = [worker.requests for worker in workers]
    most, least = max(requests), min(requests)
    if most - least > IMBALANCE and most > RATIO * least:
        return requests
    longest = max(worker.device for worker in workers)
    if longest * prompt.block_size > LEAST_MATCH * prompt.tokens:
        return [-float(worker.device) for worker in workers]
    return [worker.recent_tokens for worker in workers]
