"""A request that ends its workers is stopped, and those beside it are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, Tenant
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
from dynamo.router.suspects import PROMPT_REJECTED_SECONDS, REJECTED_SECONDS, Suspects, Suspicion, Verdicts, is_loss


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


KILLER, OTHER = Tenant("killer", keys=2), Tenant("other", keys=2)


def blamed() -> Suspects:
    """What a frontend knows after the first deadly request of a key: it cost two workers."""
    suspects = Suspects(Clock())
    first = suspects.suspicion(plain(99), KILLER)
    assert lose(first, 101) is None
    assert isinstance(lose(first, 102), HttpError)
    return suspects


def test_every_further_deadly_request_of_a_blamed_key_costs_one_worker_and_is_then_refused() -> None:
    suspects = blamed()
    for prompt in range(10):
        assert isinstance(lose(suspects.suspicion(plain(prompt), KILLER), prompt), HttpError)
        with pytest.raises(HttpError):
            suspects.suspicion(plain(prompt), KILLER).check()
        suspects.suspicion(plain(prompt), OTHER).check()
    schema = guided({"deadly": 1})
    assert isinstance(lose(suspects.suspicion(schema, KILLER), 30), InvalidRequest)
    with pytest.raises(InvalidRequest):
        suspects.suspicion(schema, KILLER).check()
    suspects.suspicion(schema, OTHER).check()


@pytest.mark.parametrize("killer_first", [True, False])
def test_losses_beside_a_blamed_key_count_for_nobody_else(killer_first: bool) -> None:
    suspects = blamed()
    innocent = suspects.suspicion(plain(), OTHER)
    for worker in range(20):
        killer = suspects.suspicion(plain(worker), KILLER)
        for each in (innocent, killer):
            each.sent(worker)
        order = (killer, innocent) if killer_first else (innocent, killer)
        verdicts = {each: each.worker_lost(worker) for each in order}
        assert verdicts[innocent] is None
        assert innocent.explained(worker)
        assert isinstance(verdicts[killer], HttpError)


def test_what_a_key_lost_before_it_was_blamed_is_forgiven_to_those_beside_it() -> None:
    suspects = Suspects(Clock())
    killer, innocent = suspects.suspicion(plain(1), KILLER), suspects.suspicion(plain(2), OTHER)
    for each in (killer, innocent):
        each.sent(1)
    assert [each.worker_lost(1) for each in (killer, innocent)] == [None, None]
    killer.sent(2)
    assert innocent.shunned() == {2}
    assert not innocent.must_shun
    innocent.sent(3)
    assert isinstance(killer.worker_lost(2), HttpError)
    assert innocent.worker_lost(3) is None, "worker 1 was the killer's doing, so this is its first"
    assert innocent.shunned() == set()


def test_suspects_of_different_keys_that_lost_two_workers_together_are_kept_apart() -> None:
    suspects = Suspects(Clock())
    killer, innocent = suspects.suspicion(plain(1), KILLER), suspects.suspicion(plain(2), OTHER)
    for worker in (1, 2):
        for each in (killer, innocent):
            each.sent(worker)
        assert [each.worker_lost(worker) for each in (killer, innocent)] == [None, None]
    killer.sent(3)
    assert innocent.must_shun
    assert innocent.shunned() == {3}
    assert isinstance(killer.worker_lost(3), HttpError)
    assert not innocent.must_shun
    innocent.sent(4)
    innocent.answered()
    innocent.settled()


def test_a_request_that_ends_workers_at_the_same_place_of_its_answer_ends() -> None:
    suspects = Suspects(Clock())
    killer, long = suspects.suspicion(plain(1), KILLER), suspects.suspicion(plain(2), OTHER)
    for worker in range(20):
        long.sent(worker)
        long.answered()
        assert long.worker_lost(worker, generated=100 * worker) is None
    for worker, verdict in ((30, None), (31, None), (32, HttpError)):
        killer.sent(worker)
        killer.answered()
        found = killer.worker_lost(worker, generated=worker - 20)
        assert isinstance(found, verdict) if verdict else found is None


def test_a_constraint_that_another_key_needs_is_not_refused_for_a_deadly_prompt() -> None:
    suspects = blamed()
    assert isinstance(lose(suspects.suspicion(guided({"common": 1}), KILLER), 7), InvalidRequest)
    suspects.suspicion(guided({"common": 1}, prompt=3), OTHER).check()


def test_frontends_tell_each_other_whom_they_blame_and_what_they_refuse() -> None:
    first, second, told = blamed(), Suspects(Clock()), []
    second.on_verdict = lambda: told.append(True)
    innocent = second.suspicion(plain(5), OTHER)
    assert lose(innocent, 101) is None
    second.learn(msgspec.msgpack.decode(msgspec.msgpack.encode(first.verdicts()), type=Verdicts))
    assert lose(innocent, 103) is None, "worker 101 was the killer's doing"
    with pytest.raises(HttpError):
        second.suspicion(plain(99), KILLER).check()
    assert isinstance(lose(second.suspicion(plain(98), KILLER), 104), HttpError)
    assert told
    first.learn(second.verdicts())
    assert first.is_blamed("killer")


def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    suspects = Suspects(Clock())
    for worker in range(3):
        one = suspects.suspicion(plain(worker), OTHER)
        one.sent(worker)
        one.answered()
        one.settled()
    assert not suspects._present
