"""Each transition of a request on its way, without a worker, a clock or a task."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.protocols.errors import (
    ConnectionTimeout,
    Disconnected,
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
    Unknown,
    WorkerBusy,
)
from dynamo.router.delivery.progress import DeliveryProgress, DeliveryState, Next

ASKED = PreprocessedRequest(token_ids=[1, 2, 3], stop_conditions=StopConditions(max_tokens=5))
GUIDED = PreprocessedRequest(
    token_ids=[1], sampling_options=SamplingOptions(temperature=0, guided_decoding={"json": {}})
)
GONE = Disconnected("gone")
FROM = 7
"""The instance that breaks."""


def sent(request: Any = ASKED, **limits: Any) -> DeliveryProgress:
    progress = DeliveryProgress(request, **{"limit": 2, **limits})
    progress.sent()
    return progress


def generating(*tokens: int, **limits: Any) -> DeliveryProgress:
    progress = sent(**limits)
    assert progress.generating()
    progress.output(EngineOutput(token_ids=list(tokens)))
    return progress


def test_a_new_request_is_being_placed_and_then_sent() -> None:
    progress = DeliveryProgress(ASKED)
    assert progress.state is DeliveryState.Placing
    progress.sent()
    assert progress.state is DeliveryState.Sent


def test_a_request_that_could_not_be_sent_avoids_that_instance_and_is_placed_again() -> None:
    progress = sent()
    progress.unsent(FROM)
    assert progress.state is DeliveryState.Placing
    assert progress.excluded == {FROM}


def test_output_that_is_no_token_is_an_answer_once() -> None:
    progress = sent()
    assert progress.answering()
    assert progress.state is DeliveryState.Answering
    assert not progress.answering()


@pytest.mark.parametrize("before", [False, True], ids=["at once", "after other output"])
def test_the_first_token_shows_once_that_the_prompt_is_computed(before: bool) -> None:
    progress = sent()
    if before:
        progress.answering()
    assert progress.generating()
    assert progress.state is DeliveryState.Generating
    assert not progress.generating()
    assert not progress.answering()


@pytest.mark.parametrize("state", [DeliveryState.Placing, DeliveryState.Over, DeliveryState.Finished])
def test_a_token_without_a_stream_that_waits_for_it_changes_nothing(state: DeliveryState) -> None:
    progress = DeliveryProgress(ASKED)
    progress.state = state
    assert not progress.generating()
    assert progress.state is state


def test_a_finish_reason_finishes_the_answer() -> None:
    progress = generating(4)
    progress.output(EngineOutput(token_ids=[5], finish_reason="stop"))
    assert progress.state is DeliveryState.Finished
    assert progress.generated == [4, 5]


def test_text_without_token_ids_cannot_be_continued() -> None:
    progress = generating(4)
    progress.output(EngineOutput(text="Hello"))
    assert progress.generated is None
    assert progress.broken(GONE, FROM) is Next.Fail


def test_a_request_in_text_cannot_be_continued_after_its_first_output() -> None:
    progress = sent({"messages": []})
    assert progress.may_move
    progress.generating()
    assert not progress.may_move


def test_a_request_that_may_not_migrate_collects_nothing() -> None:
    progress = generating(4, limit=0)
    assert progress.generated is None
    assert progress.broken(GONE, FROM) is Next.Fail
    assert progress.state is DeliveryState.Over


@pytest.mark.parametrize("error", [GONE, ConnectionTimeout("hangs"), EngineShutdown("leaves")])
def test_a_stream_that_breaks_after_tokens_moves_while_migrations_are_left(error: DynamoException) -> None:
    progress = generating(4)
    for left in (1, 0):
        assert progress.broken(error, FROM) is Next.Move
        assert (progress.state, progress.migrations_left) == (DeliveryState.Placing, left)
        assert progress.excluded == {FROM}
        progress.sent()
        progress.generating()
    assert progress.broken(error, FROM) is Next.Fail
    assert progress.state is DeliveryState.Over


def test_a_stream_that_breaks_before_any_output_moves_too() -> None:
    progress = sent()
    assert progress.broken(GONE, FROM) is Next.Move
    assert progress.migrations_left == 1


@pytest.mark.parametrize("error", [EngineShutdown("leaves"), WorkerBusy("full")])
@pytest.mark.parametrize("limit", [0, 2])
def test_a_worker_that_refuses_costs_no_migration(error: DynamoException, limit: int) -> None:
    progress = sent(limit=limit)
    assert progress.broken(error, FROM) is Next.Retry
    assert (progress.state, progress.migrations_left) == (DeliveryState.Placing, limit)


def test_a_worker_that_leaves_after_output_has_not_refused() -> None:
    progress = sent(limit=0)
    progress.answering()
    assert progress.broken(EngineShutdown("leaves"), FROM) is Next.Fail


@pytest.mark.parametrize("error", [GONE, EngineShutdown("leaves"), WorkerBusy("full")])
def test_a_pinned_request_goes_nowhere_else(error: DynamoException) -> None:
    assert sent(pinned=True).broken(error, FROM) is Next.Fail


@pytest.mark.parametrize("error", [InvalidArgument("no"), Unknown("raised"), Unavailable("nobody")])
def test_an_error_that_is_no_sign_of_a_dead_worker_is_final(error: DynamoException) -> None:
    assert generating(4).broken(error, FROM) is Next.Fail


def test_a_request_that_is_too_long_fails_and_says_so() -> None:
    progress = generating(4, max_seq_len=4)
    assert progress.may_move
    progress.output(EngineOutput(token_ids=[5]))
    assert not progress.may_move
    assert progress.broken(GONE, FROM) is Next.TooLong
    assert progress.state is DeliveryState.Over


@pytest.mark.parametrize(
    "last", [EngineOutput(token_ids=[5], finish_reason="stop"), EngineOutput(token_ids=[5, 6, 7, 8])]
)
def test_an_answer_that_breaks_after_its_last_token_is_complete(last: EngineOutput) -> None:
    progress = generating(4)
    progress.output(last)
    assert progress.broken(GONE, FROM) is Next.End
    assert progress.state is DeliveryState.Over
    assert progress.migrations_left == 2


def test_the_next_worker_is_sent_a_continuation() -> None:
    progress = generating(4)
    progress.broken(GONE, FROM)
    assert progress.next_request(resumes_guided=False).token_ids == [1, 2, 3, 4]
    assert progress.continues


@pytest.mark.parametrize("resumes", [False, True])
def test_a_guided_answer_is_continued_only_by_workers_that_can(resumes: bool) -> None:
    progress = generating(4, request=GUIDED)
    progress.broken(GONE, FROM)
    assert progress.next_request(resumes_guided=resumes).token_ids == ([1, 4] if resumes else [1])
    assert progress.continues is resumes


@pytest.mark.parametrize("error", [GONE, Unavailable("nobody")])
def test_a_request_that_may_migrate_waits_and_then_tries_all_but_those_that_leave(error: DynamoException) -> None:
    progress = sent()
    progress.broken(EngineShutdown("leaves"), 1)
    progress.sent()
    progress.broken(GONE, 2)
    assert progress.excluded == {1, 2}
    assert progress.waits(error)
    assert progress.excluded == {1}


@pytest.mark.parametrize(("limit", "error"), [(0, Unavailable("nobody")), (2, InvalidArgument("no"))])
def test_there_is_no_waiting_without_migrations_or_for_a_mistake(limit: int, error: DynamoException) -> None:
    assert not DeliveryProgress(ASKED, limit=limit).waits(error)


def test_with_all_workers_busy_a_new_request_does_not_wait_but_one_that_has_moved_does() -> None:
    busy = ResourceExhausted("all are busy")
    assert not DeliveryProgress(ASKED, limit=2).waits(busy)
    refused = sent()
    refused.broken(WorkerBusy("full"), FROM)
    assert not refused.waits(Unavailable("nobody else"))
    moved = generating(4)
    moved.broken(GONE, FROM)
    assert moved.waits(busy)


def test_a_request_that_is_to_stay_moves_no_more() -> None:
    progress = generating(4)
    progress.stay()
    assert not progress.may_move
    assert progress.broken(GONE, FROM) is Next.Fail


def test_a_closed_request_is_over() -> None:
    progress = generating(4)
    progress.over()
    assert progress.state is DeliveryState.Over
