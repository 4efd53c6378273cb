"""ai-dynamo's rule: blocks to compute there, waiting ones included, and blocks in use, of equal weight."""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker


def rule(prompt: Prompt, workers: Sequence[Worker]) -> list[float]:
    costs = []
    for worker in workers:
        credit = worker.device + 0.75 * worker.host + 0.25 * worker.disk
        prefill = (worker.waiting_tokens + prompt.tokens) / prompt.block_size - credit
        decode = worker.active_blocks + prompt.blocks - worker.shared
        costs.append(max(0.0, prefill) + decode)
    return costs
