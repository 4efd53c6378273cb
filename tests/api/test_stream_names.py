"""Streams with names, as one frontend answers them."""

from __future__ import annotations

import json

import pytest

from support.toys import Live, Scripted

CHAT = {"model": "org/toy", "messages": [{"role": "user", "content": "WEATHER"}], "stream": True}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
NAME = "a-name-that-nobody-can-guess"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-Dynamo-Stream": "short"}, "X-Dynamo-Stream: must be 16 to 128 letters"),
        ({"Last-Event-ID": "17"}, "is not the id of an event of this server"),
        ({"Last-Event-ID": f"{'a' * 16}:1@7", "X-Dynamo-Stream": "b" * 16}, "it is of the stream"),
    ],
)
async def test_a_wrong_name_or_event_is_refused_by_its_header(
    live: Live, toy: Scripted, headers: dict[str, str], words: str
) -> None:
    status, answer = await live.post("/v1/chat/completions", CHAT, **headers)
    assert status == 400
    assert words in answer["error"]["message"]
    assert not toy.requests


async def test_only_a_named_stream_has_ids_and_they_count_its_events(live: Live, toy: Scripted) -> None:
    plain = await live.events("/v1/chat/completions", CHAT)
    assert "id: " not in plain.replace('"id: ', "")
    named = await live.events("/v1/chat/completions", CHAT, **{"X-Dynamo-Stream": NAME})
    events = named.strip().split("\n\n")
    ids = [event.partition("\n")[0] for event in events]
    assert [id.partition("@")[0] for id in ids] == [f"id: {NAME}:{number}" for number in range(1, len(events) + 1)]


async def test_the_same_name_gives_the_same_bytes_also_of_tool_calls(live: Live, toy: Scripted) -> None:
    """So events that a client has can be left out of a stream that is built again."""
    body = {**CHAT, "tools": TOOLS}

    async def asked(**headers: str) -> list[str]:
        named = await live.events("/v1/chat/completions", body, **{"X-Dynamo-Stream": NAME, **headers})
        events = [event for event in named.strip().split("\n\n") if not event.startswith(":")]
        return [event.replace(created(event), "CREATED") for event in events]

    def created(event: str) -> str:
        data = event.partition("data: ")[2]
        return "none" if data == "[DONE]" else str(json.loads(data)["created"])

    whole = await asked()
    assert "call_" in "".join(whole)
    for had, event in enumerate(whole, start=1):
        last = event.partition("\n")[0].removeprefix("id: ")
        assert await asked(**{"Last-Event-ID": last}) == whole[had:]


async def test_a_stream_that_no_worker_keeps_says_how_to_go_on(live: Live, toy: Scripted) -> None:
    async with live.http.get(f"{live.url}/v1/streams/{NAME}") as answer:
        assert answer.status == 404
        assert "send its request again, with the same X-Dynamo-Stream" in (await answer.json())["error"]["message"]
