"""A worker's own limit of requests."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols.errors import Cancelled, DynamoException, WorkerBusy
from dynamo.runtime import Context
from dynamo.runtime.plane.admission import RequestLimit
from dynamo.runtime.plane.route import Route
from dynamo.runtime.status.counts import EndpointCounts, component_metrics


class Request:
    """One request at a route, and what became of it."""

    columnar = True

    def __init__(self, route: Route) -> None:
        self.context = Context()
        self.started = False
        self.error: DynamoException | None = None
        self._route = route

    def end(self) -> None:
        self._route.finished(self.context)

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self._route.finished(self.context, error)


def arriving(limit: RequestLimit, counts: EndpointCounts | None = None) -> tuple[Route, Any]:
    def handle(request: Request, context: Context, outlet: Any) -> None:
        request.started = True

    route = Route("a/b/c/1", handle, counts=counts, limit=limit)

    def arrive() -> Request:
        request: Any = Request(route)
        route.start(request, request.context, request)
        return request

    return route, arrive


def test_beyond_the_limit_requests_wait_and_beyond_the_queue_they_are_refused_before_anything_is_sent() -> None:
    route, arrive = arriving(RequestLimit(1, 1))
    running, waiting, refused = arrive(), arrive(), arrive()
    assert (running.started, waiting.started, refused.started) == (True, False, False)
    assert isinstance(refused.error, WorkerBusy)
    assert route.active == 2
    running.end()
    assert waiting.started


def test_what_runs_waits_and_was_refused_is_counted_where_there_is_a_limit() -> None:
    counts, unlimited = EndpointCounts({"at": "limited"}), EndpointCounts({})
    Route("a/b/d/1", lambda *_: None, counts=unlimited)
    route, arrive = arriving(RequestLimit(2, 1), counts)

    def metrics() -> dict[str, float]:
        families = component_metrics([counts, unlimited], 1.0)
        samples = [sample for family in families for sample in family.samples]
        return {
            sample.name: sample.value
            for sample in samples
            if sample.labels == {"at": "limited"} and not sample.name.startswith("dynamo_component")
        }

    names = ("dynamo_engine_request", "dynamo_request_queue", "dynamo_rejection_request_total")
    assert metrics() == dict.fromkeys(names, 0)
    first, *_ = [arrive() for _ in range(5)]
    assert metrics() == dict(zip(names, (2, 1, 2), strict=True))
    first.end()
    assert metrics() == dict(zip(names, (2, 0, 2), strict=True))
    assert route.active == 2


def test_a_request_whose_client_leaves_while_it_waits_is_never_started() -> None:
    _, arrive = arriving(RequestLimit(1, 2))
    running, left, waiting = arrive(), arrive(), arrive()
    left.context.kill()
    assert isinstance(left.error, Cancelled)
    running.end()
    assert not left.started
    assert waiting.started


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_no_more_than_the_limit_run_and_none_waits_while_there_is_room(
    running: int, waiting: int, history: list[tuple[bool, int]]
) -> None:
    _, arrive = arriving(RequestLimit(running, waiting))
    open_requests: list[Request] = []
    for arrives, at in history:
        if arrives:
            open_requests.append(arrive())
        elif open_requests:
            request = open_requests.pop(at % len(open_requests))
            request.end() if request.started else request.context.kill()
        open_requests = [request for request in open_requests if request.error is None]
        started = sum(request.started for request in open_requests)
        assert started == min(running, len(open_requests))
        assert len(open_requests) <= running + waiting
