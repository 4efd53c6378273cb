from __future__ import annotations

import math
import random
from collections import Counter
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynamo.kv.index.overlaps import Overlap, Overlaps
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.errors import InvalidArgument, Unavailable
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.choose import Choice, choose
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.load_book import Loads

BLOCK = 16


def fleet_of(count: int, total_blocks: int | None = 16384) -> Fleet:
    size = Capacity(total_blocks=total_blocks, max_batched_tokens=8192)
    return Fleet({WorkerRank(n): size for n in range(count)}, BLOCK)


def idle(count: int) -> Loads:
    return Loads([0] * count, [0] * count, [0] * count, [0] * count, [0.0] * count)


def pick(
    loads: Loads,
    overlaps: dict[int, Overlap] | None = None,
    tokens: int = 1600,
    config: CostConfig | None = None,
    total_blocks: int | None = 16384,
    seed: int = 0,
) -> Choice:
    held = Overlaps.of({WorkerRank(n): overlap for n, overlap in (overlaps or {}).items()})
    fleet = fleet_of(len(loads.requests), total_blocks)
    return choose(tokens, tokens // BLOCK, fleet, held, loads, config or CostConfig(), random.Random(seed))


COLUMN = st.lists(st.integers(0, 40_000), min_size=4, max_size=4)
LOADS = st.builds(
    lambda prefill, blocks, shared, traffic: Loads(
        prefill, [b + s for b, s in zip(blocks, shared, strict=True)], shared, [1] * 4, [float(t) for t in traffic]
    ),
    COLUMN,
    COLUMN,
    st.lists(st.integers(0, 100), min_size=4, max_size=4),
    COLUMN,
)
OVERLAPS = st.dictionaries(
    st.integers(0, 3), st.builds(Overlap, st.integers(0, 100), st.integers(0, 50), st.integers(0, 50)), max_size=4
)


def plain_cost(size: Capacity, held: Overlap, load: Load, loads: list[Load], config: CostConfig) -> float:
    """The rule of docs/routing.md for one worker, step by step."""
    lower = config.host_weight * held.host + config.disk_weight * held.disk
    credit = held.device + lower + config.external_weight * held.external
    left = max(0, TOKENS - int(max(credit, load.shared) * BLOCK))
    mean = max(1024.0, sum([other.traffic for other in loads]) / len(loads))
    share = 1 + load.traffic * (1 / mean) if load.traffic < mean else 2
    work = config.overlap_weight * left * share
    coming = max(0.0, load.shared - credit) * BLOCK
    reserved = load.waiting - min(1, config.overlap_weight) / 2 * min(load.waiting, coming)
    waiting = reserved + config.pass_tokens if reserved else 0
    in_use = load.blocks - load.shared + TOKENS // BLOCK
    total = size.total_blocks or (1 << 18) // BLOCK
    crowding = in_use * (config.full / total) + max(0, in_use - total) * BLOCK
    spreading = load.traffic / 1024
    batch = size.max_batched_tokens or 8192
    if load.requests and load.traffic > config.tolerance * mean + batch:
        spreading += min(batch, load.traffic - config.tolerance * mean - batch)
    return work + waiting + crowding + spreading


class Load(NamedTuple):
    waiting: int
    blocks: int
    shared: int
    requests: int
    traffic: float


TOKENS = 1607
MANY = st.integers(0, 100_000)
LOAD = st.builds(Load, st.just(0) | MANY, st.integers(100, 9999), st.just(0) | st.integers(0, 100), st.integers(0, 2),
                 st.just(0.0) | st.floats(0, 1e6))  # fmt: skip
CAPACITY = st.builds(
    Capacity,
    total_blocks=st.none() | st.sampled_from([128, 16384]),
    max_batched_tokens=st.none() | st.sampled_from([512, 8192]),
)
ON_DEVICE = st.builds(Overlap, st.integers(0, 100))
IN_TIERS = st.builds(Overlap, st.integers(0, 70), st.integers(0, 10), st.integers(0, 10), st.integers(0, 10))
CONFIG = st.builds(
    CostConfig,
    overlap_weight=st.sampled_from([1.0, 0.0, 0.3, 2.0]),
    host_weight=st.sampled_from([0.75, 1.5]),
    temperature=st.sampled_from([0.0, 0.0, 0.5]),
)


@given(
    rows=st.lists(st.tuples(CAPACITY, LOAD), min_size=1, max_size=5),
    overlaps=st.dictionaries(st.integers(0, 6), ON_DEVICE) | st.dictionaries(st.integers(0, 6), IN_TIERS),
    config=CONFIG,
    order=st.permutations(range(7)),
)
def test_every_cost_is_that_of_the_rule_and_the_choice_follows_from_the_costs(
    rows: list[tuple[Capacity, Load]], overlaps: dict[int, Overlap], config: CostConfig, order: list[int]
) -> None:
    """Whatever the sizes, loads and tiers, and in whatever order the index knows the workers, or whether it does."""
    fleet = Fleet({WorkerRank(n): capacity for n, (capacity, _) in enumerate(rows)}, BLOCK)
    columns: list[Any] = [list(column) for column in zip(*[load for _, load in rows], strict=True)]
    loads = Loads(*columns)
    known = Overlaps.of({WorkerRank(n): overlaps[n] for n in order if n in overlaps})
    if not any(map(any, known.lower)):
        known = Overlaps(known.workers, known.device)
    choice = choose(TOKENS, TOKENS // BLOCK, fleet, known, loads, config, random.Random(3))
    costs = [
        plain_cost(size, overlaps.get(n, Overlap()), load, [load for _, load in rows], config)
        for n, (size, load) in enumerate(rows)
    ]
    assert choice.costs == costs
    assert [candidate.overlap for candidate in choice.candidates()] == [
        overlaps.get(n, Overlap()) for n in range(len(rows))
    ]
    rng = random.Random(3)
    lowest = min(costs)
    if config.temperature and max(costs) > lowest:
        spread = (max(costs) - lowest) * config.temperature
        weights = [math.exp((lowest - cost) / spread) for cost in costs]
        marks = list(accumulate(weights))
        mark = rng.random() * sum(weights)
        assert choice.at == next(at for at, upto in enumerate(marks) if mark - upto < 0)
    else:
        cheapest = [at for at, cost in enumerate(costs) if cost == lowest]
        assert choice.at == (cheapest[int(rng.random() * len(cheapest))] if len(cheapest) > 1 else cheapest[0])


@given(LOADS, OVERLAPS)
def test_without_temperature_a_cheapest_worker_is_chosen(loads: Loads, overlaps: dict[int, Overlap]) -> None:
    choice = pick(loads, overlaps)
    assert choice.costs[choice.at] == min(choice.costs)
    assert choice.worker == choice.chosen.worker


@given(LOADS, OVERLAPS, st.sampled_from([64, 16384]))
def test_the_parts_of_every_candidate_add_up_to_its_cost(
    loads: Loads, overlaps: dict[int, Overlap], total: int
) -> None:
    for candidate in pick(loads, overlaps, total_blocks=total).candidates():
        parts = candidate.work + candidate.waiting + candidate.crowding + candidate.spreading
        assert math.isclose(parts, candidate.cost, rel_tol=1e-9)


@given(LOADS, OVERLAPS)
def test_weight_zero_ignores_what_is_cached(loads: Loads, overlaps: dict[int, Overlap]) -> None:
    config = CostConfig(overlap_weight=0)
    assert pick(loads, overlaps, config=config).costs == pick(loads, {}, config=config).costs


@given(LOADS, OVERLAPS, st.integers(0, 3), st.integers(1, 50))
def test_more_overlap_never_costs_more(loads: Loads, overlaps: dict[int, Overlap], at: int, more: int) -> None:
    """This holds for cached blocks: to wait for those that another request computes costs less than other waiting."""
    held = overlaps.get(at, Overlap())
    assume(held.device >= loads.shared_blocks[at])
    longer = Overlap(held.device + more, held.host, held.disk)
    assert pick(loads, overlaps | {at: longer}).costs[at] <= pick(loads, overlaps).costs[at]


def test_equals_are_chosen_evenly() -> None:
    chosen = Counter(pick(idle(4), seed=seed).at for seed in range(2000))
    assert all(400 < chosen[at] < 600 for at in range(4))
    assert pick(idle(4)).draw is not None
    assert pick(idle(4), {2: Overlap(50)}).draw is None


def test_temperature_prefers_the_cheaper_and_never_forbids_the_dearer() -> None:
    config = CostConfig(temperature=0.5)
    chosen = Counter(pick(idle(2), {0: Overlap(90)}, config=config, seed=seed).at for seed in range(2000))
    assert chosen[0] / 2000 == pytest.approx(1 / (1 + math.exp(-2)), abs=0.03)
    low = CostConfig(temperature=1e-9)
    assert {pick(idle(3), {1: Overlap(90)}, config=low, seed=seed).at for seed in range(50)} == {1}
    assert len({pick(idle(3), config=config, seed=seed).at for seed in range(50)}) == 3


def test_the_smallest_temperature_there_is_takes_the_cheaper_however_near_the_costs_are() -> None:
    loads = Loads([0, 0], [0, 0], [0, 0], [0, 0], [100.0, 0.0])
    assert pick(loads, config=CostConfig(temperature=5e-324, overlap_weight=0)).at == 1


def test_blocks_may_be_larger_than_the_cache_a_silent_card_stands_for() -> None:
    fleet = Fleet({WorkerRank(1): Capacity()}, 1 << 20)
    assert choose(1000, 0, fleet, Overlaps.of({}), idle(1), CostConfig(), random.Random(0)).worker == WorkerRank(1)


def test_a_conversation_stays_with_its_history() -> None:
    loads = Loads([0, 0], [300, 0], [80, 0], [3, 0], [9000.0, 5000.0])
    assert pick(loads, {0: Overlap(95), 1: Overlap(80)}).at == 0


def test_what_is_being_computed_for_another_request_counts_as_cached() -> None:
    loads = Loads([1600, 0], [100, 0], [100, 0], [1, 0], [1600.0, 1600.0])
    choice = pick(loads)
    assert choice.at == 0
    assert choice.chosen.prefill_tokens == 0
    assert choice.chosen.cached_blocks == 100


def test_a_prefix_is_computed_a_second_time_before_its_worker_queues_longer_than_that_takes() -> None:
    def wait(tokens: int) -> Choice:
        return pick(Loads([tokens, 0], [0, 0], [0, 0], [1, 0], [8000.0, 0.0]), {0: Overlap(100)})

    assert wait(900).at == 0
    assert wait(2000).at == 1
    why = wait(2000).passed_over
    assert why == f"worker {worker_name(0)} rank 0 holds 100 blocks more, but 2000 prompt tokens wait there"


def test_a_worker_that_computes_a_prompt_is_avoided_for_a_few_blocks_whatever_that_prompt_takes() -> None:
    def behind(tokens: int, blocks: int) -> int:
        loads = Loads([tokens, 0], [0, 0], [0, 0], [1, 1], [8000.0, 8000.0])
        return pick(loads, {0: Overlap(95), 1: Overlap(95 - blocks)}).at

    assert behind(16, 10) == 1
    assert behind(16, 30) == 0
    assert behind(0, 10) == 0


def test_recomputing_on_a_worker_with_its_share_of_the_traffic_counts_double() -> None:
    def wait(tokens: int) -> Choice:
        return pick(Loads([tokens, 0], [0, 0], [0, 0], [1, 1], [8000.0, 8000.0]), {0: Overlap(100)})

    assert wait(2000).at == 0
    assert wait(3300).at == 1


def test_a_prompt_or_two_are_no_share_of_the_traffic_to_move_others_for() -> None:
    loads = Loads([0, 0], [0, 0], [0, 0], [0, 0], [48.0, 0.0])
    assert pick(loads, {0: Overlap(3), 1: Overlap(2)}, tokens=64).at == 0


def test_traffic_that_piles_up_on_a_worker_moves_prompts_of_up_to_half_a_batch_and_no_longer_ones() -> None:
    def busy(tokens: int) -> Choice:
        loads = Loads([0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1], [90_000.0, 30_000.0, 30_000.0])
        return pick(loads, {0: Overlap(tokens // BLOCK)}, tokens=tokens)

    assert busy(3200).at != 0
    assert "more than its share of the traffic" in (busy(3200).passed_over or "")
    assert busy(16_000).at == 0


def test_a_lone_conversation_does_not_wander() -> None:
    choice = pick(Loads([0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [60_000.0, 0.0, 0.0]), {0: Overlap(100)})
    assert choice.at == 0


def test_a_worker_without_room_is_avoided_even_by_a_conversation_that_it_holds() -> None:
    def of(in_use: int) -> Choice:
        loads = Loads([0, 0], [in_use, 0], [0, 0], [9, 0], [8000.0, 8000.0])
        return pick(loads, {0: Overlap(90)}, total_blocks=1000)

    assert of(600).at == 0
    assert of(980).at == 1
    assert (
        of(980).passed_over
        == f"worker {worker_name(0)} rank 0 holds 90 blocks more, but 9 requests run there, with 1080 blocks in use"
    )


def test_the_worked_example_of_the_documentation_holds() -> None:
    loads = Loads([3000, 0, 0], [200, 140, 0], [0, 0, 0], [2, 1, 0], [8000.0, 8000.0, 2000.0])
    choice = pick(loads, {0: Overlap(90), 1: Overlap(60)})
    assert choice.at == 1
    assert [round(cost, 1) for cost in choice.costs] == [4042.8, 1347.8, 2160.3]
    assert (
        choice.passed_over == f"worker {worker_name(0)} rank 0 holds 30 blocks more, but 3000 prompt tokens wait there"
    )


def test_slower_tiers_count_by_their_weight() -> None:
    choice = pick(idle(3), {0: Overlap(0, 100), 1: Overlap(0, 0, 100), 2: Overlap(50)})
    assert [c.prefill_tokens for c in choice.candidates()] == [400, 1200, 800]
    assert choice.at == 0
    assert choice.passed_over is None


def test_a_card_without_sizes_is_taken_for_a_large_worker() -> None:
    fleet = Fleet({WorkerRank(1): Capacity()}, BLOCK)
    assert (fleet.total_blocks, fleet.batch_tokens) == ([16384], [8192])


def test_a_prompt_shorter_than_a_block_and_an_empty_one_can_be_placed() -> None:
    assert pick(idle(2), tokens=3).chosen.prefill_tokens == 3
    assert pick(idle(2), tokens=0).chosen.prefill_tokens == 0


@pytest.mark.parametrize(
    "wrong",
    [{"overlap_weight": -1.0}, {"temperature": math.nan}, {"host_weight": math.inf}, {"tolerance": 0.5}],
)
def test_a_senseless_setting_is_named_and_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        CostConfig(**wrong)


def test_no_candidates_is_an_error_of_its_own() -> None:
    with pytest.raises(Unavailable, match="no worker"):
        choose(1, 0, Fleet({}, BLOCK), Overlaps.of({}), idle(0), CostConfig(), random.Random(0))


def test_of_two_busy_workers_the_one_whose_pass_ends_first_is_chosen_unless_the_other_holds_the_prompt() -> None:
    def busy(*left: float) -> Loads:
        return Loads([300, 300], [20, 20], [0, 0], [1, 1], [5000.0, 5000.0], pass_left=[*left])

    assert pick(busy(0.9, 0.1)).at == 1
    assert pick(busy(0.1, 0.9)).at == 0
    assert pick(busy(0.9, 0.1), {0: Overlap(90)}).at == 0
