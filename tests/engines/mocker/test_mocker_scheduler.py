from __future__ import annotations

from typing import Any

import pytest

from dynamo.engines.mocker import MockerArgs, PolynomialTiming, Ranks
from dynamo.engines.mocker.scheduler import Scheduler, StepResult
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Removed, Stored
from dynamo.protocols.errors import InvalidArgument
from engines.mocker.mocker_world import answer_to


class Desk:
    """A scheduler with blocks of 4 tokens, asked in one line."""

    def __init__(self, **overrides: Any) -> None:
        settings: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 100, "watermark": 0.0, **overrides}
        self.args = MockerArgs(**settings)
        self.scheduler = Scheduler(self.args, PolynomialTiming(self.args))

    def add(self, request_id: int, prompt: list[int] | range, length: int) -> None:
        tokens = list(prompt)
        self.scheduler.add(request_id, tokens, answer_to(tokens, length, self.args.context_limit))

    def step(self) -> StepResult:
        return self.scheduler.step()

    def scheduled(self) -> dict[int, int]:
        return {sequence.request_id: count for sequence, count in self.step().scheduled.items()}

    def finish(self) -> list[Any]:
        finished = []
        while self.scheduler.busy:
            finished += self.step().finished
        return finished

    def cached(self, request_id: int, prompt: list[int] | range) -> int:
        """Prompt tokens found in the cache, with the request run to its end."""
        self.add(request_id, prompt, 1)
        (done,) = self.finish()
        return int(done.cached_tokens)


@pytest.mark.parametrize(
    ("second", "hit"),
    [
        (range(10), 8),
        (range(8), 4),
        (range(9), 8),
        (range(4), 0),
        (range(5), 4),
        ([0, 1, 2, 3, 99, 5, 6, 7, 8], 4),
        ([99, *range(1, 10)], 0),
    ],
)
def test_full_blocks_are_reused_but_the_last_token_is_always_computed(second: list[int], hit: int) -> None:
    desk = Desk()
    assert desk.cached(1, range(10)) == 0
    assert desk.cached(2, second) == hit


def test_generated_tokens_are_cached_like_prompts() -> None:
    desk = Desk()
    prompt = list(range(6))
    desk.add(1, prompt, 8)
    desk.finish()
    said = answer_to(prompt, 8).take(8)
    # The last generated token is never computed, so 13 of 14 tokens are there: three full blocks.
    assert desk.cached(2, [*prompt, *said, 1]) == 12


def test_a_prompt_in_the_same_iteration_shares_what_is_being_computed() -> None:
    desk = Desk()
    desk.add(1, range(10), 2)
    desk.add(2, range(10), 2)
    assert desk.scheduled() == {1: 10, 2: 2}


def test_without_prefix_caching_nothing_is_shared() -> None:
    desk = Desk(enable_prefix_caching=False)
    desk.cached(1, range(10))
    assert desk.cached(2, range(10)) == 0
    assert desk.scheduler.take_events() == []


def test_other_salts_share_nothing() -> None:
    desk = Desk()
    desk.cached(1, range(10))
    desk.scheduler.add(2, list(range(10)), answer_to([1], 1), salt=7)
    (done,) = desk.finish()
    assert done.cached_tokens == 0


def test_long_prompts_are_computed_in_chunks_of_the_budget() -> None:
    desk = Desk(max_num_batched_tokens=8)
    desk.add(1, range(20), 2)
    chunks = [desk.scheduled() for _ in range(4)]
    assert chunks == [{1: 8}, {1: 8}, {1: 4}, {1: 1}]
    assert not desk.scheduler.busy


def test_decoding_comes_before_prefill_and_prefill_takes_the_rest() -> None:
    desk = Desk(max_num_batched_tokens=8)
    desk.add(1, range(4), 9)
    desk.step()
    desk.add(2, range(100, 120), 9)
    desk.add(3, range(200, 203), 9)
    assert desk.scheduled() == {1: 1, 2: 7}
    assert desk.scheduled() == {1: 1, 2: 7}
    assert desk.scheduled() == {1: 1, 2: 6, 3: 1}
    assert desk.scheduled() == {1: 1, 2: 1, 3: 2}
    assert desk.scheduled() == {1: 1, 2: 1, 3: 1}


def test_a_prompt_still_in_chunks_produces_nothing() -> None:
    desk = Desk(max_num_batched_tokens=8)
    desk.add(1, range(20), 2)
    assert [len(desk.step().answered) for _ in range(4)] == [0, 0, 1, 1]


def test_without_chunks_a_prompt_waits_for_a_budget_that_holds_it() -> None:
    desk = Desk(max_num_batched_tokens=8, enable_chunked_prefill=False)
    desk.add(1, range(6), 2)
    desk.add(2, range(100, 106), 2)
    desk.add(3, range(200, 202), 2)
    assert desk.scheduled() == {1: 6}
    assert desk.scheduled() == {1: 1, 2: 6}
    assert desk.scheduled() == {2: 1, 3: 2}


def test_no_more_run_than_max_num_seqs() -> None:
    desk = Desk(max_num_seqs=2)
    for request_id in range(3):
        desk.add(request_id, range(request_id * 10, request_id * 10 + 3), 2)
    assert set(desk.scheduled()) == {0, 1}
    assert (desk.scheduler.load().running, desk.scheduler.load().waiting) == (2, 1)
    assert set(desk.scheduled()) == {0, 1}
    assert set(desk.scheduled()) == {2}


def test_the_head_of_the_queue_is_not_overtaken_while_it_lacks_blocks() -> None:
    desk = Desk(num_gpu_blocks=4)
    desk.add(1, range(8), 4)
    desk.add(2, range(100, 112), 1)
    desk.add(3, range(200, 202), 1)
    assert set(desk.scheduled()) == {1}
    assert set(desk.scheduled()) == {1}


def test_a_prompt_is_admitted_when_all_of_it_fits_not_only_its_first_chunk() -> None:
    desk = Desk(num_gpu_blocks=4, max_num_batched_tokens=8)
    desk.add(1, range(6), 2)
    desk.add(2, range(100, 112), 1)
    assert desk.scheduled() == {1: 6}
    assert desk.scheduled() == {1: 1}
    assert desk.scheduled() == {2: 8}


@pytest.mark.parametrize(("watermark", "admitted"), [(0.0, {1, 2}), (0.25, {1, 2}), (0.5, {1})])
def test_the_watermark_keeps_blocks_free_for_those_that_run(watermark: float, admitted: set[int]) -> None:
    desk = Desk(num_gpu_blocks=4, watermark=watermark)
    desk.add(1, range(8), 2)
    desk.add(2, range(100, 103), 2)
    assert set(desk.scheduled()) == admitted


def test_the_watermark_does_not_hold_back_a_request_that_is_alone() -> None:
    desk = Desk(num_gpu_blocks=4, watermark=0.9)
    desk.add(1, range(16), 1)
    assert desk.scheduled() == {1: 16}


@pytest.mark.parametrize(("mode", "victim"), [("lifo", 2), ("fifo", 1)])
def test_out_of_blocks_the_newest_or_the_oldest_gives_way(mode: str, victim: int) -> None:
    desk = Desk(num_gpu_blocks=4, preemption_mode=mode)
    desk.add(1, range(8), 6)
    desk.add(2, range(100, 108), 6)
    assert desk.scheduled() == {1: 8, 2: 8}
    survivor = 3 - victim
    assert desk.scheduled() == {survivor: 1}
    assert [sequence.request_id for sequence in desk.scheduler.waiting] == [victim]
    assert desk.scheduler.load().preemptions == 1


def test_what_a_preempted_request_was_to_compute_goes_to_others() -> None:
    desk = Desk(num_gpu_blocks=3, max_num_batched_tokens=3, preemption_mode="fifo")
    desk.add(1, [1], 9)
    desk.add(2, range(100, 103), 9)
    desk.add(3, range(200, 204), 1)
    steps = [desk.scheduled() for _ in range(4)]
    assert steps == [{1: 1, 2: 2}, {1: 1, 2: 1, 3: 1}, {1: 1, 2: 1, 3: 1}, {2: 1, 3: 2}]


def test_a_preempted_request_goes_first_and_finds_its_blocks_again() -> None:
    desk = Desk(num_gpu_blocks=4)
    desk.add(1, range(8), 2)
    desk.add(2, range(100, 108), 6)
    desk.step()
    desk.add(3, range(200, 204), 1)
    result = desk.step()
    assert [done.request_id for done in result.finished] == [1]
    # One of request 2's blocks went to request 1; the other still holds its first 4 tokens.
    assert desk.scheduled() == {2: 5, 3: 4}
    assert {done.request_id: done.cached_tokens for done in desk.finish()}[2] == 0


def test_cached_tokens_of_a_preempted_request_are_those_of_its_first_admission() -> None:
    desk = Desk(num_gpu_blocks=5)
    desk.cached(0, range(100, 105))
    desk.add(1, range(8), 10)
    desk.add(2, range(100, 108), 6)
    finished = {done.request_id: done for done in desk.finish()}
    assert desk.scheduler.load().preemptions > 0
    assert finished[2].cached_tokens == 4


def test_a_finished_request_leaves_its_blocks_to_be_evicted_tail_first() -> None:
    desk = Desk(num_gpu_blocks=3)
    desk.cached(1, range(12))
    stored = desk.scheduler.take_events()
    assert [type(event) for event in stored] == [Stored]
    head, middle, tail = stored[0].sequence_hashes  # type: ignore[union-attr]
    desk.cached(2, range(100, 108))
    events = desk.scheduler.take_events()
    assert events[0] == Removed([tail, middle])
    assert head in desk.scheduler.pool.cached_hashes()


def test_events_chain_from_block_to_block() -> None:
    desk = Desk()
    desk.add(1, range(6), 8)
    desk.finish()
    first, second, third = desk.scheduler.take_events()
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert isinstance(third, Stored)
    assert first == Stored(prompt_hashes([0, 1, 2, 3], 4))
    assert second.parent == first.sequence_hashes[-1]
    assert third.parent == second.sequence_hashes[-1]


@pytest.mark.parametrize(
    ("overrides", "length", "allowed"),
    [
        ({"num_gpu_blocks": 2}, 9, 8),
        ({"max_model_len": 6}, 6, 5),
        ({"max_num_batched_tokens": 5, "enable_chunked_prefill": False}, 6, 5),
    ],
)
def test_a_prompt_that_can_never_be_computed_is_refused(overrides: dict[str, Any], length: int, allowed: int) -> None:
    desk = Desk(**overrides)
    with pytest.raises(InvalidArgument, match=f"a prompt of {length} tokens does not fit: at most {allowed} leave"):
        desk.add(1, range(length), 1)
    desk.add(1, range(allowed), 1)
    assert len(desk.finish()) == 1


def test_an_answer_ends_at_the_context_limit() -> None:
    desk = Desk(max_model_len=10)
    desk.add(1, range(7), 50)
    (done,) = desk.finish()
    assert (done.completion_tokens, done.finish_reason) == (3, "length")


def test_an_empty_prompt_and_a_name_in_use_are_refused() -> None:
    desk = Desk()
    with pytest.raises(InvalidArgument, match="the prompt is empty"):
        desk.add(1, [], 1)
    desk.add(1, [1], 1)
    with pytest.raises(InvalidArgument, match="request 1 is already here"):
        desk.add(1, [1], 1)


def test_cancelling_frees_blocks_whether_running_or_waiting() -> None:
    desk = Desk(max_num_seqs=1)
    desk.add(1, range(8), 5)
    desk.add(2, range(8), 5)
    desk.step()
    assert desk.scheduler.cancel(2)
    assert desk.scheduler.cancel(1)
    assert not desk.scheduler.cancel(1)
    assert not desk.scheduler.busy
    assert desk.scheduler.load().kv_used_blocks == 0


def test_load_counts_blocks_requests_and_hits() -> None:
    desk = Desk(max_num_batched_tokens=12)
    desk.cached(1, range(8))
    desk.add(2, range(10), 5)
    desk.add(3, range(100, 120), 5)
    desk.step()
    load = desk.scheduler.load()
    assert (load.running, load.waiting, load.kv_total_blocks) == (2, 0, 100)
    assert load.kv_used_blocks == 3 + 3
    assert load.active_decode_blocks == 3
    assert (load.prefix_query_tokens, load.prefix_hit_tokens) == (8 + 10 + 20, 8)


def test_time_follows_the_published_curves() -> None:
    desk = Desk(num_gpu_blocks=1000, block_size=64)
    desk.add(1, range(64), 2)
    prefill = 4.209989e-07 * 64**2 + 1.518344e-02 * 64 + 16.50142
    assert desk.step().duration == pytest.approx(prefill / 1e3)
    fill = 65 / 64000
    assert desk.step().duration == pytest.approx((-25.74 * fill**2 + 54.01 * fill + 5.74) / 1e3)


def test_a_prompt_beside_a_running_request_takes_its_own_time_and_one_decode_of_the_other() -> None:
    desk = Desk(num_gpu_blocks=1000, block_size=64)
    desk.add(1, range(64), 5)
    desk.step()
    alone = PolynomialTiming(desk.scheduler.args)
    desk.add(2, range(1000, 1100), 5)
    assert desk.step().duration == pytest.approx(alone.prefill(100) + alone.decode(1, 65))


def test_the_first_token_of_a_prompt_computed_elsewhere_takes_a_decode_step() -> None:
    desk = Desk(num_gpu_blocks=1000, block_size=64, disaggregation_mode="decode")
    timing = PolynomialTiming(desk.scheduler.args)
    desk.add(1, range(130), 1)
    assert desk.step().duration == pytest.approx(timing.prefill(130))
    desk.add(2, range(130), 1)
    assert desk.step().duration == pytest.approx(timing.decode(1, 130))


@pytest.mark.parametrize(
    ("overrides", "prefill", "decode"),
    [
        ({"speedup_ratio": 10.0}, 0.1, 0.1),
        ({"speedup_ratio": 10.0, "decode_speedup_ratio": 2.0}, 0.1, 0.05),
        ({"speedup_ratio": 0.0}, 0, 0),
        ({"disaggregation_mode": "prefill"}, 1, 0),
        ({"disaggregation_mode": "decode"}, 1, 1),
    ],
)
def test_speed_and_role_scale_the_curves(overrides: dict[str, Any], prefill: float, decode: float) -> None:
    plain, scaled = PolynomialTiming(MockerArgs()), PolynomialTiming(MockerArgs(**overrides))
    assert scaled.prefill(100) == pytest.approx(plain.prefill(100) * prefill)
    assert scaled.decode(3, 1000) == pytest.approx(plain.decode(3, 1000) * decode)
    assert (plain.prefill(0), plain.decode(0, 0)) == (0, 0)


def test_ranks_take_turns_iterate_together_and_share_no_cache() -> None:
    args = MockerArgs(block_size=4, dp_size=2)
    ranks = Ranks(args)
    for request_id in range(2):
        assert ranks.add(request_id, list(range(10)), answer_to(list(range(10)), 3)) == request_id
    assert ranks.add(2, list(range(2000)), answer_to([1], 3), dp_rank=1) == 1
    alone = Scheduler(args, PolynomialTiming(args))
    alone.add(1, list(range(10)), answer_to([1], 3))
    alone.add(2, list(range(2000)), answer_to([1], 3))
    iteration = ranks.step(100.0)
    assert iteration.ends == pytest.approx(100.0 + alone.step().duration)
    assert [rank for rank, _ in iteration.events] == [0, 1]
    assert [load.running for load in ranks.load()] == [1, 2]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there_is_refused(rank: int) -> None:
    with pytest.raises(InvalidArgument, match=f"dp_rank {rank} is not one of the 2 ranks"):
        Ranks(MockerArgs(dp_size=2)).add(1, [1], answer_to([1], 1), dp_rank=rank)


def test_only_iterations_that_end_in_time_are_folded() -> None:
    ranks = Ranks(MockerArgs())
    ranks.add(1, [1, 2, 3], answer_to([1, 2, 3], 100))
    start = ranks.step(0.0).ends
    iteration = ranks.step(start, start + 0.020)
    assert iteration.steps == 3
    assert iteration.ends <= start + 0.020
    assert len(iteration.take_tokens()[0][1]) == 3
    assert ranks.step(iteration.ends, iteration.ends).steps == 1


def test_a_step_scheduled_ahead_does_not_know_who_came_since() -> None:
    desk = Desk(async_scheduling=True)
    desk.add(1, range(4), 9)
    assert desk.scheduled() == {1: 4}
    desk.add(2, range(100, 104), 9)
    assert desk.scheduler.load().waiting == 1
    assert desk.scheduled() == {1: 1}
    assert desk.scheduled() == {1: 1, 2: 4}


def test_nothing_is_scheduled_ahead_of_the_first_request_and_after_the_last() -> None:
    desk = Desk(async_scheduling=True)
    desk.add(1, range(4), 1)
    desk.add(2, range(100, 104), 1)
    assert desk.scheduled() == {1: 4}
    assert desk.scheduled() == {2: 4}
    assert not desk.scheduler.busy


def test_a_request_that_came_too_late_for_the_next_step_can_be_cancelled() -> None:
    desk = Desk(async_scheduling=True)
    desk.add(1, range(4), 3)
    desk.step()
    desk.add(2, range(100, 104), 9)
    assert desk.scheduler.cancel(2)
    assert [done.request_id for done in desk.finish()] == [1]
