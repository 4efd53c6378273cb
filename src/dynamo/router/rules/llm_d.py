"""llm-d's scorers: prefix 3, queue 2, free KV cache 2. The queue is the waiting tokens, between least and most."""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker


def rule(prompt: Prompt, workers: Sequence[Worker]) -> list[float]:
    queues = [worker.waiting_tokens for worker in workers]
    least, most = min(queues), max(queues)
    costs = []
    for worker in workers:
        prefix = worker.device / max(1, prompt.blocks)
        queue = (most - worker.waiting_tokens) / (most - least) if most > least else 1.0
        free = 1.0 - min(1.0, worker.active_blocks / worker.total_blocks)
        costs.append(-(3 * prefix + 2 * queue + 2 * free))
    return costs
