"""What a step says of a request, as engine outputs."""

from __future__ import annotations

import numpy as np
import pytest

from dynamo.engines.vllm.request import finish_reason, prompt, sampled
from dynamo.protocols.engine import EngineOutput

IDS = np.array([[5, 5, 9], [7, 3, 5]])
VALUES = np.array([[-0.5, -0.5, -1.5], [-4.0, -0.25, -1.0]])
RANKS = np.array([1, 40])


def test_the_sampled_token_is_listed_once_with_its_rank() -> None:
    output = EngineOutput(token_ids=[5, 7])
    sampled(output, (IDS, VALUES, RANKS, None), 2)
    assert output.log_probs == [-0.5, -4.0]
    assert output.top_logprobs is not None
    listed = [[(one.token_id, one.logprob, one.rank) for one in row] for row in output.top_logprobs]
    assert listed == [[(5, -0.5, 1), (9, -1.5, 2)], [(7, -4.0, 40), (3, -0.25, 1), (5, -1.0, 2)]]


def test_no_more_are_listed_than_the_client_asked_for() -> None:
    output = EngineOutput(token_ids=[5, 7])
    sampled(output, (IDS, VALUES, RANKS, None), 0)
    assert output.top_logprobs is not None
    assert [[one.token_id for one in row] for row in output.top_logprobs] == [[5], [7]]


def test_prompt_tokens_are_listed_first_in_their_place() -> None:
    rows = prompt((IDS, VALUES, RANKS, None), 1)
    assert [[one.token_id for one in row] for row in rows] == [[5], [7, 3]]


@pytest.mark.parametrize(
    ("number", "reason"), [(0, "stop"), (1, "length"), (2, "cancelled"), (3, "error: "), (4, "stop"), (9, "error: ")]
)
def test_every_reason_has_a_name(number: int, reason: str) -> None:
    assert finish_reason(number).startswith(reason)
