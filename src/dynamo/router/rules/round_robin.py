"""The next worker in turn."""

from collections.abc import Sequence

from dynamo.router.rules import Prompt, Worker


def rule(prompt: Prompt, workers: Sequence[Worker]) -> int:
    return prompt.number % len(workers)
