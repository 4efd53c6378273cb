"""Host memory and a disk below a mocker's cache."""

from __future__ import annotations

import math
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dynamo.engines.mocker import MockerArgs, Ranks
from dynamo.engines.mocker.tiers import MockTiers
from dynamo.engines.mocker.timing import PolynomialTiming
from dynamo.kv.messages import KvChange, Removed, Stored, Tier
from engines.mocker.mocker_world import TierReplica, answer_to

FEW = MockerArgs(block_size=64, num_gpu_blocks=16, num_g2_blocks=64, max_num_batched_tokens=2048)
LITTLE = structs.replace(FEW, num_g2_blocks=12, num_g3_blocks=64, bandwidth_g3_to_g2_gbps=28.0)
"""Host memory for one prompt of ten blocks, and a disk for all others."""
KEYS = st.integers(0, 9)
EVICT = st.tuples(st.just("evict"), KEYS.map(lambda key: [key]))
TAKE = st.tuples(st.just("take"), st.lists(KEYS, min_size=1, max_size=4, unique=True))
USES = st.lists(EVICT | EVICT | TAKE, max_size=60)


def mock_tiers(args: MockerArgs) -> MockTiers:
    made = MockTiers(args, PolynomialTiming(args))
    made.announced = True
    return made


class NaiveTiers:
    """Two lists of blocks, those used last at the end. What leaves the first goes to the second."""

    def __init__(self, host_limit: int, disk_limit: int) -> None:
        self.host_limit, self.disk_limit = host_limit, disk_limit
        self.host: list[int] = []
        self.disk: list[int] = []

    def put(self, key: int) -> None:
        """Into host memory, or to its end."""
        if key in self.host:
            self.host.remove(key)
        elif len(self.host) == self.host_limit:
            self.put_on_disk(self.host.pop(0))
        self.host.append(key)

    def put_on_disk(self, key: int) -> None:
        if key in self.disk:
            self.disk.remove(key)
        self.disk.append(key)
        while len(self.disk) > self.disk_limit:
            self.disk.pop(0)

    def take(self, keys: list[int]) -> list[Tier]:
        found = list(takewhile(lambda key: key in self.host or key in self.disk, keys))
        places = [Tier.Host if key in self.host else Tier.Disk for key in found]
        if Tier.Disk in places:
            for key in found:
                for held in (self.host, self.disk):
                    if key in held:
                        held.append(held.pop(held.index(key)))
        taken: list[Tier] = []
        for key, place in zip(found, places, strict=True):
            if key not in (self.host if place is Tier.Host else self.disk):
                break  # there was no room for it beside the blocks before it
            if place is Tier.Disk:
                self.put_on_disk(key)
            self.put(key)
            taken.append(place)
        return taken


@settings(max_examples=500, deadline=None)
@given(st.integers(1, 6), st.sampled_from([0, 1, 2, 5, 20]), USES)
def test_the_blocks_that_were_used_last_are_kept_and_events_tell_where(
    host_limit: int, disk_limit: int, uses: list[tuple[str, list[int]]]
) -> None:
    args = MockerArgs(num_g2_blocks=host_limit, num_g3_blocks=disk_limit, bandwidth_g2_to_g3_gbps=0.0)
    tiers = mock_tiers(args)
    naive = NaiveTiers(host_limit, disk_limit)
    heard = {Tier.Host: TierReplica(host_limit), Tier.Disk: TierReplica(disk_limit)}
    for what, keys in uses:
        if what == "evict":
            tiers.cached(keys, None)
            tiers.evicted(keys)
            naive.put(keys[0])
        else:
            assert tiers.take(keys) == naive.take(keys)
        for where, change in tiers.take_changes():
            heard[where].apply(change)
        assert list(tiers._host._segments) == naive.host
        assert list(tiers._disk._segments) == naive.disk
        assert heard[Tier.Host].hashes == set(naive.host)
        assert heard[Tier.Disk].hashes == set(naive.disk)
        assert [report.bytes for report in tiers.reports()] == [
            len(held) * 64 * 131072 for held in (naive.host, naive.disk)[: len(tiers.held)]
        ]


def ask(ranks: Ranks, number: int, prompt: list[int], now: float) -> tuple[float, float, int]:
    """When its first token came, when it ended, and how many prompt tokens were cached."""
    ranks.add(number, prompt, answer_to(prompt, 2))
    first = math.inf
    while True:
        iteration = ranks.step(now)
        now = iteration.ends
        if iteration.answered:
            first = min(first, now)
        if iteration.finished:
            return first, now, iteration.finished[0].cached_tokens


def prompts(count: int, blocks: int) -> list[list[int]]:
    return [[100 + number] * (64 * blocks) + [1] for number in range(count)]


def test_a_prompt_that_left_the_cache_is_restored_in_the_time_of_the_copy() -> None:
    ranks, now = Ranks(FEW), 0.0
    ranks.record_tier_events()
    for number, prompt in enumerate(prompts(4, 10)):
        _, now, cached = ask(ranks, number, prompt, now)
        assert cached == 0
    ranks.take_tier_events()
    begun = now
    first, now, cached = ask(ranks, 9, prompts(1, 10)[0], now)
    assert cached == 640
    copy = 640 * FEW.kv_bytes_per_token / 14e9
    assert math.isclose(first - begun, copy + PolynomialTiming(FEW).prefill(1), rel_tol=1e-6)
    (report,) = ranks.load()[0].tiers
    assert (report.restored_tokens, report.used) == (640, True)
    assert ranks.load()[0].host_weight == 1.0


def test_other_requests_go_on_while_blocks_are_copied() -> None:
    slow = MockerArgs(
        block_size=64, num_gpu_blocks=24, num_g2_blocks=64, bandwidth_g2_to_g1_gbps=1.0, max_num_batched_tokens=2048
    )
    ranks, now = Ranks(slow), 0.0
    for number, prompt in enumerate(prompts(3, 10)):
        _, now, _ = ask(ranks, number, prompt, now)
    ranks.add(9, prompts(1, 10)[0], answer_to([1], 2))
    ranks.add(10, [5] * 32, answer_to([5] * 32, 40))
    order: list[int] = []
    while ranks.busy:
        iteration = ranks.step(now)
        now = iteration.ends
        order += [sequence.request_id for sequence in iteration.answered]
    assert order[:3] == [10, 10, 10]
    assert order.count(9) == 2


@pytest.mark.parametrize("args", [FEW, LITTLE])
def test_a_block_is_announced_below_before_it_is_gone_above(args: MockerArgs) -> None:
    ranks, now = Ranks(args), 0.0
    ranks.record_tier_events()
    held = {tier: set[int]() for tier in (Tier.Device, Tier.Host, Tier.Disk)}

    def everywhere() -> set[int]:
        return set().union(*held.values())

    def hear(tier: Tier, change: KvChange) -> None:
        before = everywhere()
        assert isinstance(change, Stored | Removed)
        (held[tier].update if isinstance(change, Stored) else held[tier].difference_update)(change.sequence_hashes)
        assert before <= everywhere()

    for number, prompt in enumerate(prompts(5, 6) * 3):
        ranks.add(number, prompt, answer_to(prompt, 2))
        while ranks.busy:
            iteration = ranks.step(now)
            now = iteration.ends
            for _, changes in iteration.tier_events:
                for tier, change in changes:
                    hear(tier, change)
            for _, above in iteration.events:
                for change in above:
                    hear(Tier.Device, change)
    assert len(held[Tier.Disk] or held[Tier.Host]) > len(held[Tier.Device])


def test_a_tier_that_is_slower_than_computing_is_not_used() -> None:
    slow = MockerArgs(
        block_size=64, num_gpu_blocks=16, num_g2_blocks=64, bandwidth_g2_to_g1_gbps=0.01, max_num_batched_tokens=2048
    )
    ranks, now = Ranks(slow), 0.0
    for number, prompt in enumerate(prompts(4, 10) * 3):
        _, now, cached = ask(ranks, number, prompt, now)
        assert cached == 0
    (report,) = ranks.load()[0].tiers
    assert (report.used, report.restored_tokens, report.bytes) == (False, 0, 0)
    assert ranks.load()[0].host_weight == 0.0


@pytest.mark.parametrize("args", [FEW, LITTLE])
def test_a_cancelled_restore_gives_its_blocks_back(args: MockerArgs) -> None:
    ranks, now = Ranks(args), 0.0
    for number, prompt in enumerate(prompts(4, 10)):
        _, now, _ = ask(ranks, number, prompt, now)
    ranks.add(9, prompts(1, 10)[0], answer_to([1], 2))
    ranks.step(now)
    pool = ranks.schedulers[0].pool
    assert pool.used == 10
    assert ranks.load()[0].waiting == 1
    assert ranks.cancel(9)
    assert pool.used == 0
    assert not ranks.busy
    pool.check()


def test_a_prompt_that_left_host_memory_is_read_from_disk_and_then_copied() -> None:
    ranks, now = Ranks(LITTLE), 0.0
    for number, prompt in enumerate(prompts(4, 10)):
        _, now, _ = ask(ranks, number, prompt, now)
    begun = now
    first, now, cached = ask(ranks, 9, prompts(1, 10)[0], now)
    assert cached == 640
    size = 640 * LITTLE.kv_bytes_per_token
    copies = size / 28e9 + size / 14e9
    assert math.isclose(first - begun, copies + PolynomialTiming(LITTLE).prefill(1), rel_tol=1e-6)
    load = ranks.load()[0]
    host, disk = load.tiers
    assert (host.tier, host.restored_tokens) == (Tier.Host, 0)
    assert (disk.tier, disk.restored_tokens, disk.used) == (Tier.Disk, 640, True)
    assert (load.host_weight, load.disk_weight) == (1.0, 0.9)


def test_a_prompt_in_host_memory_does_not_wait_behind_one_that_is_read_from_disk() -> None:
    slow = structs.replace(LITTLE, num_gpu_blocks=24, num_g2_blocks=40, bandwidth_g3_to_g2_gbps=6.0)
    ranks, now = Ranks(slow), 0.0
    for number, prompt in enumerate(prompts(9, 10)):
        _, now, _ = ask(ranks, number, prompt, now)
    for number, again in ((10, 0), (11, 5)):  # the first is on disk by now, the sixth in host memory
        ranks.add(number, prompts(9, 10)[again], answer_to([1], 2))
    order: list[int] = []
    while ranks.busy:
        iteration = ranks.step(now)
        now = iteration.ends
        order += [sequence.request_id for sequence in iteration.answered]
    assert order == [11, 11, 10, 10]
    host, disk = ranks.load()[0].tiers
    assert (host.restored_tokens, disk.restored_tokens) == (640, 640)


def test_a_disk_that_is_slower_than_computing_is_not_used() -> None:
    slow = structs.replace(LITTLE, bandwidth_g3_to_g2_gbps=0.01)
    ranks, without, now = Ranks(slow), Ranks(structs.replace(LITTLE, num_g3_blocks=0)), 0.0
    for number, prompt in enumerate(prompts(4, 10) * 3):
        seen = ask(ranks, number, prompt, now)
        assert seen == ask(without, number, prompt, now)
        now = seen[1]
    _, disk = ranks.load()[0].tiers
    assert (disk.used, disk.restored_tokens, disk.bytes) == (False, 0, 0)
    assert ranks.load()[0].disk_weight == 0.0


def test_no_prompt_waits_while_a_disk_that_was_slower_is_measured_again() -> None:
    tiers = mock_tiers(MockerArgs(num_g2_blocks=1, num_g3_blocks=8))
    for key in (1, 2):
        tiers.cached([key], None)
        tiers.evicted([key])
    tiers.measured(Tier.Disk, 10**6, 10**6)
    assert tiers.take([1]) == []
    tiers.now += 60.0
    assert tiers.find([1]) == [Tier.Disk]
    assert tiers.take([1]) == []
    assert tiers.find([1]) == []
    assert tiers.costs[Tier.Disk].restored_tokens == 0


def test_blocks_are_lost_while_as_many_wait_to_be_written_as_host_memory_holds() -> None:
    tiers = mock_tiers(MockerArgs(num_g2_blocks=2, num_g3_blocks=100, bandwidth_g2_to_g3_gbps=1e-3))
    for key in range(10):
        tiers.cached([key], None)
        tiers.evicted([key])
    assert list(tiers._host._segments) == [8, 9]
    assert list(tiers._disk._segments) == [0, 1, 2]  # one is being written, two wait
    tiers.now += 2 * 64 * 131072 / 1e6
    for key in range(10, 14):
        tiers.cached([key], None)
        tiers.evicted([key])
    assert list(tiers._disk._segments) == [0, 1, 2, 8, 9]


@pytest.mark.parametrize("on_disk", [False, True])
def test_clearing_the_cache_clears_what_is_below(on_disk: bool) -> None:
    ranks, now = Ranks(LITTLE if on_disk else FEW), 0.0
    ranks.record_tier_events()
    for number, prompt in enumerate(prompts(4, 10)):
        _, now, _ = ask(ranks, number, prompt, now)
    assert ranks.clear_cache()
    assert ranks.take_tier_events() == []
    assert [report.bytes for report in ranks.load()[0].tiers] == [0] * (1 + on_disk)
    _, _, cached = ask(ranks, 9, prompts(1, 10)[0], now)
    assert cached == 0
