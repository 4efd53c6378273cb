"""Answers whose worker failed on the way, as a client of the API reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dynamo.model import Tokenizer
from dynamo.protocols.engine import EngineOutput, Usage
from dynamo.protocols.errors import Disconnected
from support.models import byte_level_json
from support.serving import CHAT, Held, Holding, serving
from support.waiting import PATIENCE


async def test_every_choice_goes_on_where_it_was(tmp_path: Path) -> None:
    """Both at the only worker there is, which stays."""
    engine = Holding()
    async with asyncio.timeout(PATIENCE), serving(tmp_path, engine, card={"migration_limit": 1}) as stack:
        asking = asyncio.create_task(stack.chat(n=2))
        begun = [await engine.requests.get(), await engine.requests.get()]
        prompt = list(begun[0].request.token_ids)
        for held, ids in zip(begun, ([65], [70, 71]), strict=True):
            held.sink.tokens(ids)
            held.sink.fail(Disconnected("gone"))
        again = [await engine.requests.get(), await engine.requests.get()]
        said = [list(held.request.token_ids)[len(prompt) :] for held in again]
        assert sorted(said) == [[65], [70, 71]]
        for held in again:
            finish(held, [held.request.token_ids[-1] + 5])
        answer = await (await asking).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == [text_of([65, 70]), text_of([70, 71, 76])]
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == 5


async def test_a_moved_prompt_is_not_counted_as_cached(tmp_path: Path) -> None:
    """The same worker takes the answer up again and finds all of it in its cache."""
    engine = Holding()
    async with asyncio.timeout(PATIENCE), serving(tmp_path, engine, card={"migration_limit": 1}) as stack:
        asking = asyncio.create_task(stack.http.post(f"{stack.url}/v1/messages", json={**CHAT, "max_tokens": 9}))
        begun = await engine.requests.get()
        prompt = len(begun.request.token_ids)
        begun.sink.tokens([65])
        begun.sink.fail(Disconnected("gone"))
        again = await engine.requests.get()
        usage = Usage(prompt_tokens=prompt + 1, prompt_tokens_details={"cached_tokens": prompt + 1})
        again.sink.item(EngineOutput(token_ids=[70], finish_reason="eos", completion_usage=usage))
        again.sink.end()
        answer = await (await asking).json()
    assert (answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]) == (prompt, 0)
    assert answer["usage"]["output_tokens"] == 2


async def test_the_frontends_own_limit_replaces_that_of_the_worker(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, card={"migration_limit": 1}, migration_limit=0) as stack:
        asking = asyncio.create_task(stack.chat())
        begun = await engine.requests.get()
        begun.sink.tokens([65])
        begun.sink.fail(Disconnected("gone"))
        assert (await asking).status == 502
        assert engine.requests.empty()


async def test_a_client_that_leaves_during_a_move_leaves_nothing_behind(tmp_path: Path) -> None:
    engine = Holding()
    async with asyncio.timeout(PATIENCE), serving(tmp_path, engine, card={"migration_limit": 5}) as stack:
        asking = asyncio.create_task(stack.chat(stream=True, n=2))
        moving, other = await engine.requests.get(), await engine.requests.get()
        moving.sink.tokens([65])
        answer = await asking
        moving.sink.fail(Disconnected("gone"))
        answer.close()
        await other.cancelled.wait()
        while (await stack.metrics())['dynamo_frontend_inflight_requests{model="tiny"}']:
            await asyncio.sleep(0)
        while not engine.requests.empty():
            assert engine.requests.get_nowait().cancelled.is_set()


def finish(held: Held, ids: list[int]) -> None:
    held.sink.item(EngineOutput(token_ids=ids, finish_reason="eos"))
    held.sink.end()


def text_of(ids: list[int]) -> str:
    return Tokenizer(byte_level_json()).decode(ids)
