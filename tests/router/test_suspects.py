"""A request that ends its workers is stopped, and those beside it are not."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions
from dynamo.protocols.errors import (
    ConnectionTimeout,
    Disconnected,
    DynamoException,
    EngineDied,
    EngineShutdown,
    HttpError,
    InvalidRequest,
    from_wire,
    to_wire,
)
from dynamo.router.suspects import PROMPT_REJECTED_SECONDS, REJECTED_SECONDS, Suspects, Suspicion, is_loss


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def guided(schema: Any, prompt: int = 1) -> PreprocessedRequest:
    sampling = SamplingOptions(guided_decoding={"json": schema})
    return PreprocessedRequest(token_ids=[prompt], sampling_options=sampling)


def plain(prompt: int = 1) -> PreprocessedRequest:
    return PreprocessedRequest(token_ids=[prompt])


def lose(suspicion: Suspicion, instance_id: int) -> DynamoException | None:
    suspicion.check()
    suspicion.sent(instance_id)
    return suspicion.worker_lost(instance_id)


def test_a_new_constraint_that_lost_two_workers_is_refused_for_a_while() -> None:
    clock = Clock()
    suspects = Suspects(clock)
    suspicion = suspects.suspicion(guided({"a": 1}))
    assert lose(suspicion, 1) is None
    assert isinstance(lose(suspicion, 2), InvalidRequest)
    with pytest.raises(InvalidRequest, match="refused"):
        suspects.suspicion(guided({"a": 1}, prompt=2)).check()
    suspects.suspicion(guided({"b": 1})).check()
    clock.now = REJECTED_SECONDS
    suspects.suspicion(guided({"a": 1})).check()


def test_losses_of_one_constraint_add_up_over_requests() -> None:
    suspects = Suspects(Clock())
    first, second, third = (suspects.suspicion(guided({}, prompt)) for prompt in range(3))
    assert lose(first, 1) is None
    assert lose(second, 1) is None
    third.sent(3)
    assert isinstance(lose(first, 2), InvalidRequest)
    assert isinstance(third.worker_lost(3), InvalidRequest)


def test_a_constraint_that_workers_have_answered_under_is_never_refused() -> None:
    suspects = Suspects(Clock())
    suspects.suspicion(guided({})).answered()
    for worker in range(0, 20, 2):
        assert lose(suspects.suspicion(guided({}, worker)), worker) is None
    suspects.suspicion(guided({})).check()


def test_a_request_that_was_alone_at_two_lost_workers_ends() -> None:
    clock = Clock()
    suspects = Suspects(clock)
    suspicion = suspects.suspicion(plain())
    assert lose(suspicion, 1) is None
    assert isinstance(lose(suspicion, 2), HttpError)
    with pytest.raises(HttpError):
        suspects.suspicion(plain()).check()
    suspects.suspicion(plain(2)).check()
    clock.now = PROMPT_REJECTED_SECONDS
    suspects.suspicion(plain()).check()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_requests_that_lost_two_workers_together_move_once_more(order: tuple[int, int]) -> None:
    suspects = Suspects(Clock())
    both = [suspects.suspicion(plain(prompt)) for prompt in range(2)]
    for worker in (1, 2):
        for each in both:
            each.sent(worker)
        for index in order:
            assert both[index].worker_lost(worker) is None
    assert isinstance(lose(both[0], 3), HttpError)
    both[1].sent(4)
    both[1].answered()
    assert lose(both[1], 5) is None


def test_an_answer_in_between_makes_a_request_innocent() -> None:
    suspicion = Suspects(Clock()).suspicion(plain())
    for worker in range(10):
        suspicion.sent(worker)
        suspicion.answered()
        assert lose(suspicion, worker) is None


def test_only_a_worker_that_may_have_died_counts() -> None:
    assert is_loss(Disconnected("gone"))
    assert is_loss(from_wire(*to_wire(EngineDied("the engine died"))))
    assert not is_loss(EngineShutdown("leaving"))
    assert not is_loss(ConnectionTimeout("hangs"))
