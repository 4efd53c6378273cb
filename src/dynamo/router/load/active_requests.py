"""The requests a KV-aware router has placed, and who is notified of them until they end.

The load book, the prompts under way, the approximate index, the other routers, and the follower of the workers' events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from dynamo.kv.follow.follow import Follower
from dynamo.kv.index.approximate import ApproximateIndex
from dynamo.kv.messages import WorkerRank
from dynamo.router.choice.service import ServiceLedger
from dynamo.router.decision import Decision
from dynamo.router.load.prompts import Prompts, SentPrompt
from dynamo.router.load.replicas import Replicas
from dynamo.router.load_book import LoadBook
from dynamo.router.placement import Account, Placement
from dynamo.runtime.plane.base import Channel


class KvPlacement(Placement):
    """A placement with what the load book and the index record."""

    __slots__ = ("group", "hashes", "key", "prompt", "worker")

    def __init__(
        self,
        account: Account,
        channel: Channel,
        worker: WorkerRank,
        *,
        key: str,
        hashes: Sequence[int],
        group: object,
        prompt: SentPrompt,
        decision: Decision | None,
        dp_rank: int | None,
    ) -> None:
        super().__init__(account, worker.worker_id, channel, decision, dp_rank)
        self.worker = worker
        self.key = key
        """Identifies it in the load book and to other routers."""
        self.hashes = hashes
        """The sequence hashes of its prompt."""
        self.group = group
        self.prompt = prompt


class ActiveRequests:
    """Books placements, and updates all books as they progress.

    `on_capacity_freed` is called when a prompt has been computed or a request has ended.
    """

    def __init__(
        self,
        book: LoadBook,
        approximate: ApproximateIndex | None,
        replicas: Replicas | None,
        follower: Follower | None,
        ledger: ServiceLedger,
        on_capacity_freed: Callable[[], None],
    ) -> None:
        self._book = book
        self.prompts = Prompts()
        self._approximate = approximate
        self._replicas = replicas
        self._follower = follower
        self._ledger = ledger
        self._on_capacity_freed = on_capacity_freed
        self._keys = count()
        self._groups: Counter[object] = Counter()
        """Active placements of each group."""

    def reserve(
        self,
        channel: Channel,
        worker: WorkerRank,
        hashes: Sequence[int],
        *,
        now: float,
        prompt_tokens: int,
        prefill_tokens: int,
        group: object = None,
        tenant: str = "",
        ahead: bool = False,
        copy: bool = False,
        learn: bool = True,
        decision: Decision | None = None,
        dp_rank: int | None = None,
    ) -> KvPlacement:
        """Reserve a placement. For shared prefixes, those of one `group` count as one request, a `copy` as none."""
        key = str(next(self._keys))
        extra = copy or (group is not None and group in self._groups)
        self._book.reserve(
            key, worker, hashes, now=now, prompt_tokens=prompt_tokens, prefill_tokens=prefill_tokens, extra=extra
        )
        if group is not None:
            self._groups[group] += 1
        if self._approximate is not None and learn:
            self._approximate.record(worker, hashes, now)
        if self._replicas:
            self._replicas.added(key, worker, hashes, prompt_tokens, prefill_tokens, extra=extra, learn=learn)
        prompt = SentPrompt(worker, tenant, now, prefill_tokens if ahead else 0)
        self.prompts.begin(prompt)
        return KvPlacement(
            self,
            channel,
            worker,
            key=key,
            hashes=hashes,
            group=group,
            prompt=prompt,
            decision=decision,
            dp_rank=dp_rank,
        )

    def detach(self) -> None:
        """From now on, update the load book only."""
        self._replicas = self._follower = None

    def shared_prefix(self, placement: KvPlacement, least: int) -> tuple[int, int]:
        """How many leading blocks of its prompt at least `least` active requests share, and how many requests do."""
        return self._book.shared_prefix(placement.key, least)

    def connected(self, placement: Placement) -> None: ...

    def prompt_computed(self, placement: Placement) -> None:
        assert isinstance(placement, KvPlacement)
        self._book.first_token(placement.key)
        self.prompts.computed(placement.prompt, asyncio.get_running_loop().time())
        if self._replicas:
            self._replicas.prefill_done(placement.key)
        self._on_capacity_freed()

    def released(self, placement: Placement) -> None:
        assert isinstance(placement, KvPlacement)
        self._ledger.ended(placement)
        self._book.free(placement.key)
        if not placement.computed:
            self.prompts.end(placement.prompt)
        if placement.group is not None:
            self._groups[placement.group] -= 1
            if not self._groups[placement.group]:
                del self._groups[placement.group]
        if self._replicas:
            self._replicas.freed(placement.key)
        if self._follower and placement.computed:
            self._follower.expect(placement.worker, placement.hashes)
        self._on_capacity_freed()
