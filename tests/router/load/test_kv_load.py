from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.load_book import LoadBook, Loads

A, B = WorkerRank(1), WorkerRank(2)


@pytest.fixture
def book() -> LoadBook:
    book = LoadBook(half_life=10)
    book.add_worker(A)
    book.add_worker(B)
    return book


def add(
    book: LoadBook, request: str, worker: WorkerRank, chain: list[int], now: float = 0.0, prefill: int = 100
) -> bool:
    return book.reserve(request, worker, chain, now=now, prompt_tokens=200, prefill_tokens=prefill)


def loads(book: LoadBook, chain: list[int], now: float = 0.0) -> Loads:
    return book.loads([A, B], chain, now)


def traffic(book: LoadBook, now: float) -> list[float]:
    load = loads(book, [], now=now)
    return [sent * load.scale for sent in load.sent]


def test_blocks_shared_by_requests_count_once(book: LoadBook) -> None:
    add(book, "x", A, [1, 2, 3])
    add(book, "y", A, [1, 2, 4, 5])
    add(book, "z", B, [1])
    seen = loads(book, [1, 2, 4, 9])
    assert seen.active_blocks == [5, 1]
    assert seen.shared_blocks == [3, 1]
    assert seen.requests == [2, 1]
    assert seen.prefill_tokens == [200, 100]


def test_the_first_token_releases_the_prefill_once(book: LoadBook) -> None:
    add(book, "x", A, [1])
    assert book.first_token("x")
    assert not book.first_token("x")
    assert loads(book, []).prefill_tokens == [0, 0]
    assert loads(book, []).active_blocks == [1, 0]


def test_a_request_is_booked_once_and_freed_once(book: LoadBook) -> None:
    assert add(book, "x", A, [1])
    assert not add(book, "x", B, [1, 2])
    assert book.free("x")
    assert not book.free("x")
    assert not book.first_token("x")
    assert loads(book, [1]) == Loads([0, 0], [0, 0], [0, 0], [0, 0], [200.0, 0.0])


def test_a_worker_that_leaves_is_forgotten_with_its_traffic_when_its_last_request_has_ended(book: LoadBook) -> None:
    add(book, "x", A, [1, 2])
    add(book, "y", B, [1])
    book.remove_worker(A)
    assert not add(book, "z", A, [1])
    assert book.free("x")
    book.add_worker(WorkerRank(3))
    assert book.loads([WorkerRank(3), B], [1, 2], 0.0) == Loads([0, 100], [0, 1], [0, 1], [0, 1], [0.0, 200.0])
    with pytest.raises(InvalidArgument, match="worker 1 rank 0 is not in the load book"):
        loads(book, [])


def test_a_worker_that_comes_back_has_what_it_had(book: LoadBook) -> None:
    add(book, "x", A, [1, 2])
    add(book, "y", A, [1, 3])
    before = loads(book, [1, 2])
    book.remove_worker(A)
    book.add_worker(A)
    assert loads(book, [1, 2]) == before
    book.remove_worker(A)
    book.free("x")
    book.add_worker(A)
    book.free("y")
    assert loads(book, [1]).requests == [0, 0]
    assert add(book, "z", A, [1])


def test_traffic_halves_with_every_half_life_however_long_it_takes(book: LoadBook) -> None:
    add(book, "x", A, [1])
    assert traffic(book, now=10) == pytest.approx([100, 0])
    add(book, "y", B, [1], now=10)
    assert traffic(book, now=30) == pytest.approx([25, 50])
    assert traffic(book, now=10_000) == pytest.approx([0, 0])
    add(book, "z", B, [1], now=10_000)
    assert traffic(book, now=10_010) == pytest.approx([0, 100])


def test_a_request_counts_that_is_the_first_after_a_long_time(book: LoadBook) -> None:
    add(book, "x", A, [1])
    add(book, "y", B, [1], now=10_000)
    assert traffic(book, now=10_000) == pytest.approx([0, 200])


def test_the_same_candidates_are_looked_up_anew_after_a_change_of_workers(book: LoadBook) -> None:
    workers = [A, B]
    add(book, "x", B, [1])
    assert book.loads(workers, [], 0).requests == [0, 1]
    book.free("x")
    book.remove_worker(A)
    book.remove_worker(B)
    book.add_worker(B)
    book.add_worker(A)
    add(book, "y", B, [1])
    assert book.loads(workers, [], 0).requests == [0, 1]


def chain_of(choices: tuple[int, ...], length: int) -> list[int]:
    """Three blocks after each choice, so that chains part at some places and end at any."""
    return [hash((choices[: at // 3 + 1], at)) for at in range(min(length, 3 * len(choices)))]


CHOICES = st.lists(st.integers(1, 2), max_size=5).map(tuple)
CHAINS = st.builds(chain_of, CHOICES, st.integers(0, 15))
REQUESTS = st.sampled_from("abcdefgh")
WORKERS = st.sampled_from([WorkerRank(1), WorkerRank(2), WorkerRank(2, 1)])


class BookAgainstNaiveModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.book = LoadBook()
        self.model: dict[str, tuple[WorkerRank, list[int], int, bool]] = {}
        self.workers = [WorkerRank(1), WorkerRank(2), WorkerRank(2, 1)]
        for worker in self.workers:
            self.book.add_worker(worker)

    @rule(request=REQUESTS, worker=WORKERS, chain=CHAINS, prefill=st.integers(0, 50), extra=st.booleans())
    def add(self, request: str, worker: WorkerRank, chain: list[int], prefill: int, extra: bool) -> None:
        fresh = self.book.reserve(request, worker, chain, now=0, prompt_tokens=1, prefill_tokens=prefill, extra=extra)
        assert fresh == (request not in self.model and worker in self.workers)
        if fresh:
            self.model[request] = (worker, chain, prefill, extra)

    @rule(request=REQUESTS)
    def first_token(self, request: str) -> None:
        self.book.first_token(request)
        if request in self.model:
            worker, chain, _, extra = self.model[request]
            self.model[request] = (worker, chain, 0, extra)

    @rule(request=REQUESTS)
    def free(self, request: str) -> None:
        assert self.book.free(request) == (self.model.pop(request, None) is not None)

    @rule(worker=WORKERS)
    def leave(self, worker: WorkerRank) -> None:
        self.book.remove_worker(worker)
        self.workers = [other for other in self.workers if other != worker]

    @rule(worker=WORKERS)
    def come(self, worker: WorkerRank) -> None:
        self.book.add_worker(worker)
        if worker not in self.workers:
            self.workers = [*self.workers, worker]

    @invariant()
    def only_workers_that_are_there_or_have_requests_are_kept(self) -> None:
        assert {*self.book._slots} == {*self.workers, *(reserved[0] for reserved in self.model.values())}

    @invariant()
    def same_loads(self) -> None:
        for choices in ((1, 1, 1, 1), (1, 2, 1, 2, 2), (2, 1)):
            chain = chain_of(choices, 14)
            seen = self.book.loads(self.workers, chain, 0)
            for at, worker in enumerate(self.workers):
                here = [reserved for reserved in self.model.values() if reserved[0] == worker]
                active = {block for reserved in here for block in reserved[1]}
                assert seen.requests[at] == len(here)
                assert seen.prefill_tokens[at] == sum(reserved[2] for reserved in here)
                assert seen.active_blocks[at] == len(active)
                assert seen.shared_blocks[at] == sum(block in active for block in chain)

    @invariant()
    def same_sharing(self) -> None:
        counted = [{*chain} for _, chain, _, extra in self.model.values() if not extra]
        for request, (_, chain, _, _) in self.model.items():
            shared = [number for block in chain if (number := sum(block in other for other in counted)) >= 2]
            assert self.book.shared_prefix(request, 2) == (len(shared), shared[-1] if shared else 0)

    @invariant()
    def no_segment_is_kept_that_could_be_left_out(self) -> None:
        look = [*self.book._active._root.children.values()]
        while look:
            node = look.pop()
            assert node.requests == sum(node.users.values()) > 0
            assert node.mask == sum(1 << slot for slot in node.users)
            children = list(node.children.values())
            assert sum(child.requests for child in children) <= node.requests
            assert len(children) != 1 or children[0].requests < node.requests
            look += children

    def teardown(self) -> None:
        for request in list(self.model):
            self.book.free(request)
        seen = self.book.loads(self.workers, [], 0)
        assert not any((*seen.prefill_tokens, *seen.active_blocks, *seen.requests))
        assert not self.book._active._root.children


BookAgainstNaiveModel.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestBookAgainstNaiveModel = BookAgainstNaiveModel.TestCase
