from __future__ import annotations

import pytest

from dynamo.mocker.__main__ import engine_args, parser, stagger


def test_few_workers_start_at_once_and_many_one_after_the_other() -> None:
    assert stagger(3, -1) == [0.0, 0.0, 0.0]
    assert stagger(3, 0.5) == [0.0, 0.5, 0.5]
    many = stagger(100, -1)
    assert (many[0], many[1], many[32], many[33]) == (0.0, 0.1, 2.1, 0.1)
    assert stagger(200, -1)[1] == 0.2


@pytest.mark.parametrize("delay", [-2.0, -0.5, float("inf"), float("nan")])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="--stagger-delay"):
        stagger(2, delay)


def test_flags_become_engine_arguments() -> None:
    words = ["--model-path", "x", "--data-parallel-size", "2", "--no-enable-prefix-caching", "--reasoning"]
    args = engine_args(
        parser().parse_args(
            [*words, '{"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 0.5}']
        )
    )
    assert (args.dp_size, args.enable_prefix_caching) == (2, False)
    assert args.reasoning
    assert args.reasoning.thinking_ratio == 0.5
