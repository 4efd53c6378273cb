"""Preble's E2: exploit a prefix longer than what is missing, unless its worker has twice the load; otherwise explore.

Its load is what was computed in the last minutes; here that is what waits and the recent prompts.
"""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker


def rule(prompt: Prompt, workers: Sequence[Worker]) -> list[float]:
    loads = [worker.waiting_tokens + worker.recent_tokens for worker in workers]
    most = max(worker.device for worker in workers)
    holders = [at for at, worker in enumerate(workers) if worker.device == most]
    if 2 * most * prompt.block_size > prompt.tokens and min(loads[at] for at in holders) <= 2 * min(loads) + 8192:
        return [loads[at] if at in holders else float("inf") for at in range(len(workers))]
    costs = []
    for worker, load in zip(workers, loads, strict=True):
        missing = prompt.tokens - worker.device * prompt.block_size
        evicted = max(0.0, worker.active_blocks + prompt.blocks - worker.total_blocks) * prompt.block_size
        costs.append(load + missing + evicted)
    return costs
