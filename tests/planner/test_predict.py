"""Predictors of demand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.planner.config import PlannerConfig
from dynamo.planner.forecast import predict

PREDICTORS: list[Any] = ["constant", "arima", "kalman"]


def config(predictor: Any) -> PlannerConfig:
    return PlannerConfig(environment="virtual", load_predictor=predictor)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_a_constant_series_goes_on(predictor: Any) -> None:
    assert predict([5.0] * 30, 6, config(predictor)) == pytest.approx(5.0)


@pytest.mark.parametrize("predictor", ["arima", "kalman"])
def test_a_rising_series_is_expected_to_rise(predictor: Any) -> None:
    assert predict([float(value) for value in range(60)], 6, config(predictor)) > 59


@pytest.mark.parametrize("predictor", PREDICTORS)
@given(values=st.lists(st.floats(0, 1e6), max_size=60), steps=st.floats(0, 100))
def test_a_prediction_is_finite_and_not_negative(predictor: Any, values: list[float], steps: float) -> None:
    assert 0 <= predict(values, steps, config(predictor)) < 1e9
