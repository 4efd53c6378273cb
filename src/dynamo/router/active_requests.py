"""The requests a KV-aware router has placed, entered wherever they must be known until they end.

That is the load book, the index learned from placements, the other routers, and the follower of the workers' events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from dynamo.protocols.kv import WorkerRank
from dynamo.router.decision import Decision
from dynamo.router.kv.index.approximate import ApproximateIndex
from dynamo.router.kv.load.book import LoadBook
from dynamo.router.kv.sync.follow import Follower
from dynamo.router.kv.sync.replicas import Replicas
from dynamo.router.placement import Account, Placement
from dynamo.runtime.plane.base import Channel


class KvPlacement(Placement):
    """A placement with what the load book and the index need to know of it."""

    __slots__ = ("chain", "group", "key", "worker")

    def __init__(
        self,
        account: Account,
        channel: Channel,
        worker: WorkerRank,
        *,
        key: str,
        chain: Sequence[int],
        group: object,
        decision: Decision | None,
        dp_rank: int | None,
    ) -> None:
        super().__init__(account, worker.worker_id, channel, decision, dp_rank)
        self.worker = worker
        self.key = key
        """Its name in the load book and towards other routers."""
        self.chain = chain
        """The sequence hashes of its prompt."""
        self.group = group


class ActiveRequests:
    """`on_eased` is called when a prompt was computed or a request has ended."""

    def __init__(
        self,
        book: LoadBook,
        learned: ApproximateIndex | None,
        replicas: Replicas | None,
        follower: Follower | None,
        on_eased: Callable[[], None],
    ) -> None:
        self._book = book
        self._learned = learned
        self._replicas = replicas
        self._follower = follower
        self._on_eased = on_eased
        self._keys = count()
        self._groups: Counter[object] = Counter()
        """Active placements of each group."""

    def book(
        self,
        channel: Channel,
        worker: WorkerRank,
        chain: Sequence[int],
        *,
        now: float,
        prompt_tokens: int,
        prefill_tokens: int,
        group: object = None,
        copy: bool = False,
        learn: bool = True,
        decision: Decision | None = None,
        dp_rank: int | None = None,
    ) -> KvPlacement:
        """Placements of one `group` count as one request among those that share a prefix, a `copy` as none."""
        key = str(next(self._keys))
        extra = copy or (group is not None and group in self._groups)
        self._book.book(
            key, worker, chain, now=now, prompt_tokens=prompt_tokens, prefill_tokens=prefill_tokens, extra=extra
        )
        if group is not None:
            self._groups[group] += 1
        if self._learned is not None and learn:
            self._learned.record(worker, chain, now)
        if self._replicas:
            self._replicas.added(key, worker, chain, prompt_tokens, prefill_tokens, extra=extra, learn=learn)
        return KvPlacement(self, channel, worker, key=key, chain=chain, group=group, decision=decision, dp_rank=dp_rank)

    def detach(self) -> None:
        """What happens from now on is entered in the load book only."""
        self._replicas = self._follower = None

    def shared_prefix(self, placement: KvPlacement, least: int) -> tuple[int, int]:
        """How many leading blocks of its prompt at least `least` active requests share, and how many requests do."""
        return self._book.shared_prefix(placement.key, least)

    def connected(self, placement: Placement) -> None: ...

    def prompt_computed(self, placement: Placement) -> None:
        assert isinstance(placement, KvPlacement)
        self._book.first_token(placement.key)
        if self._replicas:
            self._replicas.prefill_done(placement.key)
        self._on_eased()

    def released(self, placement: Placement) -> None:
        assert isinstance(placement, KvPlacement)
        self._book.free(placement.key)
        if placement.group is not None:
            self._groups[placement.group] -= 1
            if not self._groups[placement.group]:
                del self._groups[placement.group]
        if self._replicas:
            self._replicas.freed(placement.key)
        if self._follower and placement.computed:
            self._follower.expect(placement.worker, placement.chain)
        self._on_eased()
