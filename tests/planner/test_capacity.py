"""What a worker sustains, from observations of a worker whose times are known."""

from __future__ import annotations

import random

import pytest

from dynamo.planner.capacity import WorkerSample, fit_step

IDLE, PER_REQUEST, PER_PROMPT = 0.05, 0.004, 2e-4
INPUT, OUTPUT = 1000.0, 100.0


def sample(batch: float, prompts: float) -> WorkerSample:
    """Steps of a worker with `batch` requests, which computes `prompts` prompt tokens per second beside."""
    latency = (IDLE + PER_REQUEST * batch) / (1 - PER_PROMPT * prompts)
    return WorkerSample(prompts=prompts, generated=batch / latency, latency=latency, weight=1.0)


def calm() -> list[WorkerSample]:
    rng = random.Random(1)
    return [sample(rng.uniform(2, 15), rng.uniform(100, 800)) for _ in range(30)]


def test_the_time_of_a_step_is_told_apart_from_the_prompts_that_interrupt_it() -> None:
    model = fit_step(calm(), 5)
    assert model
    assert (model.idle, model.per_request, model.per_prompt) == pytest.approx((IDLE, PER_REQUEST, PER_PROMPT))


def test_what_is_sustained_is_the_rate_at_which_the_tail_of_a_steady_worker_reaches_the_target() -> None:
    model = fit_step(calm(), 5)
    assert model
    rate, mean = model.sustainable_rate(0.12, 2.0, INPUT, OUTPUT), IDLE + (0.12 - IDLE) / 2
    assert sample(rate * OUTPUT * mean, rate * INPUT).latency == pytest.approx(mean)


def late_answers(rate: float, output_tokens: int, target: float) -> float:
    """The share of answers on one worker whose tokens are further apart than the target, by drawing arrivals."""
    rng = random.Random(2)
    mean = IDLE / (1 - rate * (PER_REQUEST * output_tokens + PER_PROMPT * INPUT))
    step = IDLE + PER_REQUEST * rate * output_tokens * mean
    late = 0
    for _ in range(4000):
        arrived, now, ended = rng.expovariate(rate), 0.0, output_tokens * step
        while arrived < ended:
            now, ended = arrived, ended + PER_PROMPT * INPUT
            arrived = now + rng.expovariate(rate)
        late += ended > output_tokens * target
    return late / 4000


@pytest.mark.parametrize("output_tokens", [20, 50, 200])
def test_short_answers_leave_room_for_the_chance_of_prompts_between_their_tokens(output_tokens: int) -> None:
    model = fit_step(calm(), 5)
    assert model
    rate = model.sustainable_rate(0.12, 1.0, INPUT, output_tokens)
    assert 0.05 < late_answers(rate, output_tokens, 0.12) < 0.15


def test_a_jam_does_not_change_what_is_sustained() -> None:
    """Its batch is large because requests piled up, not because many arrive."""
    before = fit_step(calm(), 5)
    after = fit_step([*calm(), *(sample(batch, 4000.0) for batch in (40, 50, 60, 60, 55, 45))], 5)
    assert before
    assert after
    assert after.sustainable_rate(0.12, 1.1, INPUT, OUTPUT) == pytest.approx(
        before.sustainable_rate(0.12, 1.1, INPUT, OUTPUT)
    )
