"""Host memory below a mocker's cache."""

from __future__ import annotations

import math
from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.engines.mocker import MockerArgs, Ranks
from dynamo.engines.mocker.host_tier import HostTier
from dynamo.engines.mocker.timing import PolynomialTiming
from dynamo.protocols.kv import Removed, Stored, Tier
from engines.mocker.mocker_world import HostReplica, answer_to

FEW = MockerArgs(block_size=64, num_gpu_blocks=16, num_g2_blocks=64, max_num_batched_tokens=2048)
KEYS = st.integers(0, 9)
USES = st.lists(st.tuples(st.sampled_from(["evict", "take"]), KEYS), max_size=60)


def tier(args: MockerArgs) -> HostTier:
    made = HostTier(args, PolynomialTiming(args))
    made.store.announced = True
    return made


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 6), USES)
def test_the_blocks_that_were_used_last_are_kept_and_events_tell_which(limit: int, uses: list[tuple[str, int]]) -> None:
    host, kept, heard = tier(MockerArgs(num_g2_blocks=limit)), OrderedDict[int, None](), HostReplica(limit)
    for what, key in uses:
        if what == "evict":
            host.cached([key], None)
            host.evicted([key])
            kept[key] = None
            kept.move_to_end(key)
            while len(kept) > limit:
                kept.popitem(last=False)
        else:
            assert host.take([key]) == (key in kept)
            if key in kept:
                kept.move_to_end(key)
        for where, change in host.take_changes():
            assert where is Tier.Host
            heard.apply(change)
        assert list(host._memory._segments) == list(kept)
        assert heard.hashes == set(kept)


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
    host = ranks.schedulers[0].host
    assert host
    (report,) = host.store.reports()
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


def test_a_block_is_announced_below_before_it_is_gone_above() -> None:
    ranks, now = Ranks(FEW), 0.0
    ranks.record_tier_events()
    device, host = set[int](), set[int]()
    for number, prompt in enumerate(prompts(5, 6) * 3):
        ranks.add(number, prompt, answer_to(prompt, 2))
        while ranks.busy:
            iteration = ranks.step(now)
            now = iteration.ends
            before = device | host
            for _, changes in iteration.tier_events:
                for _, change in changes:
                    assert isinstance(change, Stored | Removed)
                    (host.update if isinstance(change, Stored) else host.difference_update)(change.sequence_hashes)
            for _, above in iteration.events:
                for change in above:
                    assert isinstance(change, Stored | Removed)
                    (device.update if isinstance(change, Stored) else device.difference_update)(change.sequence_hashes)
            assert before <= device | host
    assert len(host) > len(device)


def test_a_tier_that_is_slower_than_computing_is_not_used() -> None:
    slow = MockerArgs(
        block_size=64, num_gpu_blocks=16, num_g2_blocks=64, bandwidth_g2_to_g1_gbps=0.01, max_num_batched_tokens=2048
    )
    ranks, now = Ranks(slow), 0.0
    for number, prompt in enumerate(prompts(4, 10) * 3):
        _, now, cached = ask(ranks, number, prompt, now)
        assert cached == 0
    host = ranks.schedulers[0].host
    assert host
    (report,) = host.store.reports()
    assert (report.used, report.restored_tokens, report.bytes) == (False, 0, 0)
    assert ranks.load()[0].host_weight == 0.0


def test_a_cancelled_restore_gives_its_blocks_back() -> None:
    ranks, now = Ranks(FEW), 0.0
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
