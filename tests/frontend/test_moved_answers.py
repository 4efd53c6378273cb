"""Answers whose worker failed on the way, as a client of the API reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dynamo.model import Tokenizer
from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.errors import Disconnected
from support.models import byte_level_json
from support.serving import Held, Holding, serving
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
