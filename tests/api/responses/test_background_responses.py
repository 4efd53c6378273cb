"""`background: true`, by the official client: the answer outlives its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from dynamo.runtime import Context
from support.toys import Live, Scripted, metrics_once, toy_card
from support.waiting import until

MODEL = "org/toy"


class Held(Scripted):
    """Says a first word, and the rest when it is released."""

    def __init__(self) -> None:
        super().__init__({"HOLD": "one two three four"})
        self.released = asyncio.Event()
        self.stopped = asyncio.Event()

    async def generate(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        first = True
        async for step in super().generate(request, context):
            yield step
            if first:
                either = [asyncio.create_task(self.released.wait()), asyncio.create_task(self._stop(context))]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for task in either:
                    task.cancel()
                await asyncio.gather(*either, return_exceptions=True)
            first = False

    async def _stop(self, context: Context) -> None:
        await context.async_killed_or_stopped()
        self.stopped.set()


@pytest.fixture
async def engine(live: Live, folder: Path) -> AsyncIterator[Held]:
    held = Held()
    await live.serve(held.generate, toy_card(folder, MODEL))
    yield held
    held.released.set()  # a worker that stops waits for its requests


@pytest.fixture
async def client(live: Live) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as made:
        yield made


async def finished(client: AsyncOpenAI, id: str) -> Any:
    """The response, once it does not run any more."""

    async def ended() -> Any:
        response = await client.responses.retrieve(id)
        return None if response.status == "in_progress" else response

    return await until(ended)


async def test_a_background_response_is_fetched_when_it_is_complete(engine: Held, client: AsyncOpenAI) -> None:
    begun = await client.responses.create(model=MODEL, input="HOLD", background=True)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    assert (await client.responses.retrieve(begun.id)).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="still in progress"):
        await client.responses.create(model=MODEL, input="x", previous_response_id=begun.id)
    engine.released.set()
    done = await finished(client, begun.id)
    assert (done.status, done.output_text) == ("completed", "one two three four")
    assert done.usage.output_tokens > 1
    engine.answers = {}
    await client.responses.create(model=MODEL, input="And now?", previous_response_id=begun.id)
    assert "one two three four" in engine.tokenizer.decode(engine.requests[-1]["token_ids"])


async def test_a_cancelled_response_stops_at_its_worker(engine: Held, client: AsyncOpenAI) -> None:
    begun = await client.responses.create(model=MODEL, input="HOLD", background=True)
    await until(lambda: bool(engine.requests))
    assert (await client.responses.cancel(begun.id)).status == "cancelled"
    await engine.stopped.wait()
    assert (await client.responses.cancel(begun.id)).status == "cancelled"
    assert (await client.responses.retrieve(begun.id)).status == "cancelled"


async def test_only_a_background_response_can_be_cancelled(engine: Held, client: AsyncOpenAI) -> None:
    engine.released.set()
    whole = await client.responses.create(model=MODEL, input="HOLD")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        await client.responses.cancel(whole.id)


async def test_a_deleted_response_stops_and_stays_deleted(engine: Held, client: AsyncOpenAI) -> None:
    begun = await client.responses.create(model=MODEL, input="HOLD", background=True)
    await until(lambda: bool(engine.requests))
    await client.responses.delete(begun.id)
    await engine.stopped.wait()
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(begun.id)


async def test_a_stream_goes_on_where_it_was_left(engine: Held, client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input="HOLD", background=True, stream=True)
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    id = seen[0].response.id  # type: ignore[union-attr]
    resumed = await client.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    engine.released.set()
    rest = [event async for event in resumed]
    assert [event.sequence_number for event in seen + rest] == list(range(len(seen) + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "one two three four"
    assert (await client.responses.retrieve(id)).status == "completed"
    again = [event async for event in await client.responses.retrieve(id, stream=True)]
    assert [event.type for event in again] == [event.type for event in seen + rest]


async def test_what_was_not_streamed_in_the_background_is_not_streamed_again(
    engine: Held, client: AsyncOpenAI, live: Live
) -> None:
    engine.released.set()
    whole = await client.responses.create(model=MODEL, input="HOLD")
    with pytest.raises(openai.BadRequestError, match="`background` and `stream`"):
        await client.responses.retrieve(whole.id, stream=True)
    events = await client.responses.create(model=MODEL, input="HOLD", background=True, stream=True)
    id = [event async for event in events][-1].response.id  # type: ignore[union-attr]
    async with live.http.get(f"/v1/responses/{id}?stream=true&starting_after=x") as answer:
        assert answer.status == 400


async def test_a_failure_is_kept(live: Live, client: AsyncOpenAI, folder: Path) -> None:
    async def broken(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        raise RuntimeError("out of order")
        yield {}

    await live.serve(broken, toy_card(folder, MODEL))
    begun = await client.responses.create(model=MODEL, input="x", background=True)
    done = await finished(client, begun.id)
    assert (done.status, "out of order" in done.error.message) == ("failed", True)


async def test_background_responses_must_be_stored(engine: Held, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="needs `store`"):
        await client.responses.create(model=MODEL, input="HOLD", background=True, store=False)


async def test_background_responses_are_limited(folder: Path) -> None:
    async with Live(background_responses=1) as live:
        held = Held()
        await live.serve(held.generate, toy_card(folder, MODEL))
        body = {"model": MODEL, "input": "HOLD", "background": True}
        first = (await live.post("/v1/responses", body))[1]["id"]
        status, answer = await live.post("/v1/responses", body)
        held.released.set()
        assert (status, "1 responses run in the background" in answer["error"]["message"]) == (503, True)
        async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k") as client:
            await finished(client, first)
        assert (await live.post("/v1/responses", body))[0] == 200


async def test_a_response_counts_as_running_until_it_is_complete(engine: Held, client: AsyncOpenAI, live: Live) -> None:
    def at(name: str, **labels: str) -> str:
        written = ",".join(f'{key}="{value}"' for key, value in sorted({"model": MODEL, **labels}.items()))
        return f"dynamo_frontend_{name}{{{written}}}"

    def ended(status: str, error: str) -> str:
        endpoint = {"endpoint": "responses", "request_type": "unary"}
        return at("requests_total", error_type=error, status=status, **endpoint)

    first = await client.responses.create(model=MODEL, input="HOLD", background=True)
    seen = await metrics_once(live.metrics, lambda seen: seen.get(at("output_tokens_total")) == 1)
    assert seen[at("inflight_requests")] == 1
    assert ended("success", "") not in seen
    engine.released.set()
    done = await finished(client, first.id)
    seen = await metrics_once(live.metrics, lambda seen: seen.get(ended("success", "")) == 1)
    assert seen[at("inflight_requests")] == 0
    assert seen[at("output_tokens_total")] == done.usage.output_tokens
    engine.released.clear()
    second = await client.responses.create(model=MODEL, input="HOLD", background=True)
    await client.responses.cancel(second.id)
    await metrics_once(live.metrics, lambda seen: seen.get(ended("error", "cancelled")) == 1)


async def test_a_response_counts_in_the_limits_of_its_key_until_it_is_complete(folder: Path) -> None:
    async with Live(api_keys=("one",), key_concurrent_requests=1) as live:
        live.http.headers["Authorization"] = "Bearer one"
        held = Held()
        await live.serve(held.generate, toy_card(folder, MODEL))
        async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="one", max_retries=0) as client:
            begun = await client.responses.create(model=MODEL, input="HOLD", background=True)
            with pytest.raises(openai.RateLimitError, match="1 requests of this key run already"):
                await client.responses.create(model=MODEL, input="x")
            held.released.set()
            await finished(client, begun.id)
            await client.responses.create(model=MODEL, input="x")


async def test_a_server_that_stops_leaves_no_response_in_progress(engine: Held, live: Live, tmp_path: Path) -> None:
    def another() -> Live:
        server = Live(state_dir=str(tmp_path))
        server.local = live.local
        return server

    async with another() as server:

        async def begin() -> Any:
            body = {"model": MODEL, "input": "HOLD", "background": True}
            return (await server.post("/v1/responses", body))[1].get("id")

        id = await until(begin)
        await until(lambda: bool(engine.requests))
    async with another() as server:
        kept = await server.get(f"/v1/responses/{id}")
    assert (kept["status"], kept["error"]["message"]) == ("failed", "The server was stopped.")
