"""The table of routes, and what follows from it for paths and methods."""

from __future__ import annotations

from collections import Counter

from dynamo.frontend.routes.table import routes
from support.toys import Live, Scripted


def test_a_method_of_a_path_has_one_route() -> None:
    assert set(Counter((route.method, route.path) for route in routes()).values()) == {1}


def test_what_runs_a_model_takes_a_body_and_is_documented() -> None:
    inference = [route for route in routes() if route.endpoint]
    assert len({route.endpoint for route in inference}) == len(inference) == 10
    (continues,) = (route for route in inference if route.method == "GET")
    assert continues.endpoint == "streams", "the body is that of the request which began the stream"
    inference.remove(continues)
    assert all(route.method == "POST" and route.body and route.answer and route.summary for route in inference)


async def test_errors_have_the_shape_of_the_api_the_path_belongs_to(live: Live, toy: Scripted) -> None:
    anthropic = {"/v1/messages": 405, "/v1/messages/count_tokens": 405, "/v1/messages/batches": 404}
    openai = {"/v1/chat/completions": 405, "/v1/nothing": 404, "/nothing": 404}
    for path, expected in (anthropic | openai).items():
        async with live.http.get(path) as answer:
            assert answer.status == expected
            body = await answer.json()
        assert (body.get("type") == "error") == (path in anthropic)


async def test_a_wrong_method_is_answered_with_the_right_ones(live: Live) -> None:
    async with live.http.delete("/busy_threshold") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")
