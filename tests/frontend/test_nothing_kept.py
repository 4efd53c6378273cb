"""What an answered request leaves behind: nothing that only the garbage collector could find."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from dynamo.api.answers.sse import EventStream
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.pipeline.postprocess import Postprocess
from dynamo.router.delivery.delivery import Delivery
from dynamo.router.stream_watch import StreamClock
from dynamo.serving.collect import CollectedChoice, CollectedResponse
from dynamo.serving.request import ModelRequest
from support.toys import Live, Scripted

PARTS = (
    RequestRecord,
    ModelRequest,
    Delivery,
    StreamClock,
    Postprocess,
    EventStream,
    CollectedResponse,
    CollectedChoice,
)

MESSAGES = [{"role": "user", "content": "Is it sunny?"}]
CHAT = {"model": "org/toy", "messages": MESSAGES}
USAGE = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "n": 2}),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 2, "stream_options": USAGE}),
        ("/v1/chat/completions", {**CHAT, "messages": []}),
        ("/v1/completions", {"model": "org/toy", "prompt": "sunny"}),
        ("/v1/completions", {"model": "org/toy", "prompt": "sunny", "stream": True, "stream_options": USAGE}),
        ("/v1/responses", {"model": "org/toy", "input": "sunny", "stream": True}),
        ("/v1/messages", {"model": "org/toy", "messages": MESSAGES, "max_tokens": 9, "stream": True}),
    ],
)
async def test_an_answered_request_is_freed_without_the_collector(
    live: Live, toy: Scripted, path: str, body: dict[str, Any]
) -> None:
    gc.collect()
    gc.disable()
    try:
        await _ask(live, path, body)
        kept = _parts()
        for _ in range(3):
            await _ask(live, path, body)
        assert _parts() == kept
    finally:
        gc.enable()


async def _ask(live: Live, path: str, body: dict[str, Any]) -> None:
    async with live.http.post(path, json=body) as answer:
        await answer.read()


def _parts() -> dict[str, int]:
    alive = [type(one).__name__ for one in gc.get_objects() if isinstance(one, PARTS)]
    return {part.__name__: alive.count(part.__name__) for part in PARTS}
