"""Sampling against what probability says, and rows together against rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynamo.engines.llamacpp.sampling import Sampler, highest, sample_plain

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


def frequencies(sampler: Sampler, draws: int = 4000) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.bincount([sampler.sample(LOGITS) for _ in range(draws)], minlength=4) / draws


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, [0.725, 0.181, 0.065, 0.029]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.76}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
        ({"min_p": 0.4}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0]),
        ({"bias": {0: -100.0}}, [0, 0.5, 0.3, 0.2]),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_are_likely(options: dict[str, Any], expected: list[float]) -> None:
    assert np.allclose(frequencies(Sampler(seed=1, **options)), expected, atol=0.03)


def test_rows_sampled_together_are_those_sampled_alone() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 500)).astype(np.float32)
    temperatures = [0.0, 1.0, 0.3, 0.0, 2.0, 1.0]
    together = sample_plain(rows, [Sampler(temperature=t, seed=9) for t in temperatures])
    alone = [Sampler(temperature=t, seed=9).sample(row) for t, row in zip(temperatures, rows, strict=True)]
    assert together == alone


def test_a_nucleus_wider_than_the_likely_tokens_is_found() -> None:
    flat = np.zeros(5000, np.float32)
    drawn = {Sampler(top_p=0.99, seed=seed).sample(flat) for seed in range(200)}
    assert len(drawn) > 150


def test_sampling_leaves_the_logits_as_they_are() -> None:
    row = LOGITS.copy()
    sampler = Sampler(temperature=0.5, presence=1.0, repetition=2.0, bias={1: 3.0})
    sampler.see([0], [2], 4)
    sampler.sample(row, [3])
    assert np.array_equal(row, LOGITS)


def test_the_highest_come_first() -> None:
    assert highest(np.array([1, 5, 3, 4], np.float32), 3) == [1, 3, 2]
    assert highest(np.array([1, 5], np.float32), 10) == [1, 0]
    assert highest(np.array([1, 5], np.float32), 0) == []


def test_an_answer_that_began_elsewhere_draws_the_random_numbers_that_are_next() -> None:
    logits = np.random.default_rng(1).normal(size=50).astype(np.float32)
    options: dict[str, Any] = {"seed": 5, "presence": 0.5, "repetition": 1.2}
    first, second = Sampler(**options), Sampler(**options)
    first.see([1, 2], (), 50)
    drawn = []
    for _ in range(8):
        drawn.append(first.sample(logits))
        first.add(drawn[-1])
    second.see([1, 2], drawn[:3], 50)
    for id in drawn[3:]:
        assert second.sample(logits) == id
        second.add(id)
