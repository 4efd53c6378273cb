"""The prompts that workers compute for this router: for which tenants, since when, and which were sent ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from dynamo.kv.messages import WorkerRank

_SMOOTHING = 8


class SentPrompt(Struct, frozen=True):
    worker: WorkerRank
    tenant: str
    """Empty if it has none."""
    sent: float
    ahead_tokens: int = 0
    """To compute, if it was sent ahead."""


class _AtWorker(Struct):
    prompts: int = 0
    ahead_tokens: int = 0
    began: float = 0.0
    """When its current forward pass began, as far as first tokens tell."""


class Prompts:
    """A tenant with no prompt under way may have one sent ahead: to a worker that is too busy for other requests.

    It joins the next forward pass there, which costs the others less than waiting would cost its tenant. However many
    tenants there are, what is sent ahead to a worker stays within one batch and one prompt.
    """

    def __init__(self) -> None:
        self._tenants: Counter[str] = Counter()
        self._workers: dict[WorkerRank, _AtWorker] = {}
        self._seconds = 0.0
        """How long a prompt takes from here to its first token; recent ones count more."""

    def begin(self, prompt: SentPrompt) -> None:
        self._tenants[prompt.tenant] += 1
        at = self._workers.get(prompt.worker)
        if at is None:
            at = self._workers[prompt.worker] = _AtWorker(began=prompt.sent)
        at.prompts += 1
        at.ahead_tokens += prompt.ahead_tokens

    def computed(self, prompt: SentPrompt, now: float) -> None:
        taken = now - prompt.sent
        self._seconds += (taken - self._seconds) / _SMOOTHING if self._seconds else taken
        self._workers[prompt.worker].began = now
        self.end(prompt)

    def end(self, prompt: SentPrompt) -> None:
        """It is computed, or never will be."""
        self._tenants[prompt.tenant] -= 1
        if not self._tenants[prompt.tenant]:
            del self._tenants[prompt.tenant]
        at = self._workers[prompt.worker]
        at.prompts -= 1
        at.ahead_tokens -= prompt.ahead_tokens
        if not at.prompts:
            del self._workers[prompt.worker]

    def room_ahead(self, tenant: str, workers: Sequence[WorkerRank], batch_tokens: Sequence[int]) -> list[WorkerRank]:
        """Where a prompt of the tenant may be sent ahead."""
        if not tenant or tenant in self._tenants:
            return []
        known = self._workers
        return [
            worker
            for worker, batch in zip(workers, batch_tokens, strict=True)
            if (at := known.get(worker)) is None or at.ahead_tokens < batch
        ]

    def pass_left(self, workers: Sequence[WorkerRank], now: float) -> list[float]:
        """The share of its current forward pass that each worker still has before it; 1 where that is not known.

        A pass that takes much longer than others did may take any time longer: it counts as one that just began.
        """
        known, usual = self._workers, self._seconds
        return [
            min(1.0, abs(1 - (now - at.began) / usual)) if usual and (at := known.get(worker)) else 1.0
            for worker in workers
        ]
