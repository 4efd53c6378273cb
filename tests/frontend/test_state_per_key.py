"""What the server keeps, asked for with the API key that stored it and with another."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from support.toys import Live, Scripted, toy_card

MODEL = "org/toy"
Clients = tuple[AsyncOpenAI, AsyncOpenAI]


@pytest.fixture(params=["memory", "sqlite"])
async def clients(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> AsyncIterator[Clients]:
    """The clients of the keys `mine` and `yours`."""
    state = str(tmp_path / "state") if request.param == "sqlite" else None
    async with Live(api_keys=("mine", "yours"), state_dir=state) as live:
        live.http.headers["Authorization"] = "Bearer mine"
        await live.serve(Scripted().generate, toy_card(folder, MODEL))
        mine, yours = (AsyncOpenAI(base_url=f"{live.url}/v1", api_key=key, max_retries=0) for key in ("mine", "yours"))
        async with mine, yours:
            yield mine, yours


async def test_a_response_belongs_to_the_key_that_asked_for_it(clients: Clients) -> None:
    mine, yours = clients
    response = await mine.responses.create(model=MODEL, input="my secret")
    with pytest.raises(openai.NotFoundError):
        await yours.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await yours.responses.input_items.list(response.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await yours.responses.create(model=MODEL, input="go on", previous_response_id=response.id)
    item = {"type": "item_reference", "id": response.output[0].id}
    with pytest.raises(openai.NotFoundError):
        await yours.responses.create(model=MODEL, input=[item])  # type: ignore[list-item]
    with pytest.raises(openai.NotFoundError):
        await yours.responses.delete(response.id)
    assert (await mine.responses.retrieve(response.id)).output_text == response.output_text
    assert await mine.responses.create(model=MODEL, input="go on", previous_response_id=response.id)


async def test_a_conversation_belongs_to_the_key_that_made_it(clients: Clients) -> None:
    mine, yours = clients
    conversation = await mine.conversations.create()
    with pytest.raises(openai.NotFoundError):
        await yours.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError):
        await yours.responses.create(model=MODEL, input="hi", conversation=conversation.id)
    assert await mine.responses.create(model=MODEL, input="hi", conversation=conversation.id)


async def test_files_and_batches_belong_to_the_key_that_made_them(clients: Clients) -> None:
    mine, yours = clients
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = await mine.files.create(file=("in.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
    with pytest.raises(openai.NotFoundError):
        await yours.files.content(file.id)
    with pytest.raises(openai.NotFoundError):
        await yours.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = await mine.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.NotFoundError):
        await yours.batches.cancel(batch.id)
    for client, files, batches in ((mine, {file.id}, [batch.id]), (yours, set(), [])):
        assert {each.id for each in (await client.files.list()).data} >= files
        assert [each.id for each in (await client.batches.list()).data] == batches
    assert (await yours.files.list()).data == []
