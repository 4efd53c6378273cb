"""What was sent where, written down wherever it must be known: the load book, what is learned, the other routers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from dynamo.kv.subjects import Place
from dynamo.protocols.kv import WorkerRank
from dynamo.router.kv.index.approximate import ApproximateIndex
from dynamo.router.kv.load.book import LoadBook
from dynamo.router.kv.sync.follow import Follower
from dynamo.router.kv.sync.replicas import Replicas


class Booked:
    """One prompt on its worker. Whoever holds it says when it is computed and, in whatever way it ended, `release`."""

    __slots__ = ("_ledger", "chain", "computed", "key", "released", "tokens", "worker")

    def __init__(
        self, ledger: Ledger, key: str, worker: WorkerRank, chain: Sequence[int], tokens: Sequence[int] | None
    ) -> None:
        self._ledger = ledger
        self.key = key
        self.worker = worker
        self.chain = chain
        self.tokens = tokens
        self.computed = False
        self.released = False

    def first_token(self) -> None:
        if not self.computed and not self.released:
            self.computed = True
            self._ledger.computed(self)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self._ledger.ended(self)


class Ledger:
    """`changed` is called when a prompt was computed or has ended."""

    def __init__(self, book: LoadBook, learned: ApproximateIndex | None, changed: Callable[[], None]) -> None:
        self.replicas: Replicas | None = None
        self.follower: Follower | None = None
        self.places: dict[int, Place] = {}
        """Where each instance belongs, which is where others listen."""
        self._book = book
        self._learned = learned
        self._changed = changed
        self._keys = count()
        self._prompts: Counter[int] = Counter()
        """Running requests by the identity of their tokens."""

    def book(
        self,
        worker: WorkerRank,
        chain: Sequence[int],
        *,
        now: float,
        prompt_tokens: int,
        prefill_tokens: int,
        tokens: Sequence[int] | None,
        learn: bool = True,
    ) -> Booked:
        """`tokens` are the request's own, which its choices share: they are one request. None is nobody's request."""
        key = str(next(self._keys))
        extra = tokens is None or id(tokens) in self._prompts
        self._book.book(
            key, worker, chain, now=now, prompt_tokens=prompt_tokens, prefill_tokens=prefill_tokens, extra=extra
        )
        if tokens is not None:
            self._prompts[id(tokens)] += 1
        if self._learned is not None and learn:
            self._learned.record(worker, chain, now)
        if self.replicas:
            place = self.places[worker.worker_id]
            self.replicas.added(place, key, worker, chain, prompt_tokens, prefill_tokens, extra=extra, learn=learn)
        return Booked(self, key, worker, chain, tokens)

    def sharing(self, booked: Booked, least: int) -> tuple[int, int]:
        """How many leading blocks of a prompt at least so many running requests share, and how many requests do."""
        return self._book.sharing(booked.key, least)

    def computed(self, booked: Booked) -> None:
        self._book.first_token(booked.key)
        if self.replicas:
            self.replicas.prefill_done(booked.key)
        self._changed()

    def ended(self, booked: Booked) -> None:
        self._book.free(booked.key)
        if booked.tokens is not None:
            self._prompts[id(booked.tokens)] -= 1
            if not self._prompts[id(booked.tokens)]:
                del self._prompts[id(booked.tokens)]
        if self.replicas:
            self.replicas.freed(booked.key)
        if self.follower and booked.computed:
            self.follower.expect(booked.worker, booked.chain)
        self._changed()
