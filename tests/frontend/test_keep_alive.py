from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai

from dynamo.protocols.errors import Unknown
from support.serving import CHAT, MODEL, Holding, serving

COMMENT = ": keep-alive\n"


async def test_comments_bridge_a_long_prefill_and_end_with_it(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, sse_keep_alive_secs=0.01) as stack:
        answer = await stack.chat(stream=True)
        assert answer.status == 200
        held = await engine.requests.get()
        for _ in range(3):
            assert (await answer.content.readline()).decode() == COMMENT
            assert await answer.content.readline() == b"\n"
        held.sink.tokens([100])
        held.sink.tokens([101])
        held.sink.end()
        events = [event for event in (await answer.text()).split("\n\n") if event and event + "\n" != COMMENT]
        assert json.loads(events[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
        assert len(events) == 5
        assert events[-1] == "data: [DONE]"


async def test_an_error_after_a_comment_is_an_event(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, sse_keep_alive_secs=0.01) as stack:
        answer = await stack.chat(stream=True)
        await answer.content.readline()
        (await engine.requests.get()).sink.fail(Unknown("broken"))
        events = (await answer.text()).strip().split("\n\n")
        assert events[-2].startswith('data: {"error":{"message":"broken')
        assert events[-1] == "data: [DONE]"


async def test_an_error_before_the_first_comment_is_a_status(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, sse_keep_alive_secs=60) as stack:
        asking = asyncio.create_task(stack.chat(stream=True))
        (await engine.requests.get()).sink.fail(Unknown("broken"))
        assert (await asking).status == 500


async def test_the_openai_client_reads_over_comments(tmp_path: Path) -> None:
    engine = Holding()
    async with (
        serving(tmp_path, engine, sse_keep_alive_secs=0.01) as stack,
        openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none") as client,
    ):
        stream = await client.chat.completions.create(model=MODEL, messages=CHAT["messages"], stream=True)
        held = await engine.requests.get()
        held.sink.tokens([100])
        held.sink.end()
        assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "stop"


async def test_a_client_of_http_1_0_gets_its_comments_unframed(tmp_path: Path) -> None:
    engine = Holding()
    body = json.dumps({**CHAT, "stream": True}).encode()
    async with serving(tmp_path, engine, sse_keep_alive_secs=0.01) as stack, stack.raw() as (reader, writer):
        writer.write(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"chunked" not in head
        assert (await reader.readline()).decode() == COMMENT
        held = await engine.requests.get()
        held.sink.tokens([100])
        held.sink.end()
        assert (await reader.read()).endswith(b"\n\ndata: [DONE]\n\n")


async def test_a_client_may_leave_between_comments(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, sse_keep_alive_secs=0.01) as stack:
        answer = await stack.chat(stream=True)
        await answer.content.readline()
        answer.close()
        await (await engine.requests.get()).cancelled.wait()


async def test_a_stream_of_messages_begins_with_its_first_event_after_comments(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, sse_keep_alive_secs=0.01) as stack:
        answer = await stack.http.post(f"{stack.url}/v1/messages", json={**CHAT, "max_tokens": 5, "stream": True})
        await answer.content.readline()
        held = await engine.requests.get()
        held.sink.tokens([100])
        held.sink.end()
        events = [event for event in (await answer.text()).split("\n\n") if "event: " in event]
        assert "event: message_start\n" in events[0], events
