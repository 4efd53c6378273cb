"""Responses with state, by the official OpenAI client against a live server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from support.toys import Live, Scripted, toy_card

MODEL = "org/toy"
ANSWERS = {
    "THINK": "<think>let me see</think>The answer.",
    "WEATHER": '<tool_call>\n{"name": "weather", "arguments": {"city": "Lyon"}}\n</tool_call>',
}
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


class Kept:
    def __init__(self, live: Live, client: AsyncOpenAI, engine: Scripted) -> None:
        self.live = live
        self.client = client
        self.engine = engine

    def prompt(self) -> str:
        """What the model read last."""
        return self.engine.tokenizer.decode(self.engine.requests[-1]["token_ids"])

    async def ask(self, input: Any, **fields: Any) -> Any:
        return await self.client.responses.create(model=MODEL, input=input, **fields)


async def serve(live: Live, folder: Path) -> Scripted:
    engine = Scripted(dict(ANSWERS))
    await live.serve(engine.generate, toy_card(folder, MODEL, tool_call_parser="hermes", reasoning_parser="basic"))
    return engine


@pytest.fixture(params=["memory", "sqlite"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> AsyncIterator[Kept]:
    config = {"state_dir": str(tmp_path / "state")} if request.param == "sqlite" else {}
    async with Live(**config) as live, openai_client(live) as client:
        yield Kept(live, client, await serve(live, folder))


def openai_client(live: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_continues_the_one_before_it(kept: Kept, stream: bool) -> None:
    first = await kept.ask("My name is Ada.", instructions="Be brief.")
    assert first.store is True
    second = await kept.ask("And now?", previous_response_id=first.id, stream=stream)
    if stream:
        second = [event async for event in second][-1].response
    prompt = kept.prompt()
    assert prompt.index("My name is Ada.") < prompt.index(first.output_text) < prompt.index("And now?")
    assert "Be brief." not in prompt
    assert second.previous_response_id == first.id
    await kept.client.responses.delete(first.id)
    await kept.ask("Third.", previous_response_id=second.id)
    assert "My name is Ada." in kept.prompt()


async def test_references_stand_for_the_items_of_earlier_responses(kept: Kept) -> None:
    """The second turn of the Vercel AI SDK, with its defaults."""
    user = {"role": "user", "content": [{"type": "input_text", "text": "THINK"}]}
    first = await kept.ask([user])
    kept.engine.answers = {}
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    assert [item.type for item in first.output] == ["reasoning", "message"]
    await kept.ask([user, *references, {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]}])
    prompt = kept.prompt()
    assert prompt.index("THINK") < prompt.index("The answer.") < prompt.index("Go on.")


async def test_a_call_is_answered_by_reference(kept: Kept) -> None:
    stream = await kept.ask("WEATHER", tools=[TOOL], stream=True)
    (call,) = [event async for event in stream][-1].response.output
    kept.engine.answers = {"sunny": "It is sunny."}
    outcome = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    again = await kept.ask([{"role": "user", "content": "go"}, {"id": call.id}, outcome], tools=[TOOL])
    assert again.output_text == "It is sunny."
    assert '"city": "Lyon"' in kept.prompt()


async def test_a_response_is_shown_as_it_was_and_deleted(kept: Kept) -> None:
    made = await kept.ask("THINK")
    assert await kept.client.responses.retrieve(made.id) == made
    await kept.client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match=f"Response with id '{made.id}' not found"):
        await kept.client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await kept.client.responses.delete(made.id)


async def test_input_items_are_listed_in_pages(kept: Kept) -> None:
    first = await kept.ask("one")
    second = await kept.ask([{"role": "user", "content": "two"}], previous_response_id=first.id)
    items: list[Any] = [item async for item in kept.client.responses.input_items.list(second.id, order="asc", limit=1)]
    texts = [item.content[0].text for item in items if item.type == "message"]
    assert texts == ["one", first.output_text, "two"]
    newest = await kept.client.responses.input_items.list(second.id, limit=2)
    assert [item.id for item in newest.data] == [item.id for item in reversed(items)][:2]
    assert newest.has_more
    with pytest.raises(openai.BadRequestError, match="limit: must be a whole number from 1 to 100"):
        await kept.client.responses.input_items.list(second.id, limit=0)
    with pytest.raises(openai.BadRequestError, match="after: there is no 'nothing'"):
        await kept.client.responses.input_items.list(second.id, after="nothing")


async def test_what_is_not_to_be_stored_is_not(kept: Kept) -> None:
    made = await kept.ask("hello", store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        await kept.client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await kept.ask("more", previous_response_id=made.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.NotFoundError, match=f"Item with id '{made.output[0].id}' not found"):
        await kept.ask([{"type": "item_reference", "id": made.output[0].id}, {"role": "user", "content": "x"}])


async def test_tokens_are_counted_with_the_turns_before(kept: Kept) -> None:
    first = await kept.ask("hello")
    alone = await kept.client.responses.input_tokens.count(model=MODEL, input="And now?")
    after = await kept.client.responses.input_tokens.count(model=MODEL, input="And now?", previous_response_id=first.id)
    assert alone.input_tokens < after.input_tokens
    again = await kept.ask("And now?", previous_response_id=first.id)
    assert again.usage.input_tokens == after.input_tokens


async def test_a_conversation_grows_with_its_responses(kept: Kept) -> None:
    items: Any = [{"type": "message", "role": "user", "content": "My name is Ada."}]
    made = await kept.client.conversations.create(items=items, metadata={"a": "b"})
    response = await kept.ask("Hello.", conversation=made.id)
    assert response.conversation.id == made.id
    assert "My name is Ada." in kept.prompt()
    await kept.ask("Again.", conversation={"id": made.id}, store=False)
    assert response.output_text in kept.prompt()
    listed = [item async for item in kept.client.conversations.items.list(made.id, order="asc")]
    assert [item.role for item in listed if item.type == "message"] == ["user", *["user", "assistant"] * 2]


async def test_a_conversation_and_its_items_are_changed_and_deleted(kept: Kept) -> None:
    conversations = kept.client.conversations
    made = await conversations.create(metadata={"a": "b"})
    assert (await conversations.update(made.id, metadata={"c": "d"})).metadata == {"c": "d"}
    assert (await conversations.retrieve(made.id)).metadata == {"c": "d"}
    items: Any = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    added = await conversations.items.create(made.id, items=items)
    one, two = added.data
    assert await conversations.items.retrieve(one.id or "", conversation_id=made.id) == one
    assert (await conversations.items.delete(one.id or "", conversation_id=made.id)).id == made.id
    assert [item.id async for item in conversations.items.list(made.id)] == [two.id]
    with pytest.raises(openai.NotFoundError, match="not found in conversation"):
        await conversations.items.retrieve(one.id or "", conversation_id=made.id)
    assert (await conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError, match=f"Conversation with id '{made.id}' not found"):
        await conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await kept.ask("x", conversation=made.id)


async def test_wrong_items_and_mixed_histories_are_refused_by_their_field(kept: Kept) -> None:
    with pytest.raises(openai.BadRequestError, match=r"items\[0\].role"):
        await kept.client.conversations.create(items=[{"type": "message", "content": "x"}])  # type: ignore[list-item]
    made = await kept.client.conversations.create()
    with pytest.raises(openai.BadRequestError) as refused:
        await kept.ask("x", conversation=made.id, previous_response_id="resp_1")
    assert refused.value.code == "mutually_exclusive_parameters"


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_the_summary_that_was_asked_for(kept: Kept, stream: bool) -> None:
    answer = await kept.ask("THINK", reasoning={"summary": "auto"}, stream=stream)
    if stream:
        events = [event async for event in answer]
        deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
        assert "".join(deltas) == "let me see"
        assert not any(event.type.startswith("response.reasoning_text") for event in events)
        answer = events[-1].response
    reasoning = answer.output[0]
    assert reasoning.summary[0].text == "let me see"
    assert not reasoning.content
    kept.engine.answers = {}
    await kept.ask("more", previous_response_id=answer.id)
    assert "The answer." in kept.prompt()


async def test_a_server_that_keeps_nothing_says_so(folder: Path) -> None:
    async with Live(stored_responses=0) as live, openai_client(live) as client:
        kept = Kept(live, client, await serve(live, folder))
        made = await kept.ask("hello")
        assert made.store is False
        for fields in ({"previous_response_id": made.id}, {"conversation": "conv_1"}):
            with pytest.raises(openai.BadRequestError, match="keeps no responses"):
                await kept.ask("x", **fields)
        with pytest.raises(openai.BadRequestError, match="keeps no responses"):
            await kept.ask([{"type": "item_reference", "id": "msg_1"}])
        with pytest.raises(openai.BadRequestError, match="keeps no conversations"):
            await client.conversations.create()


async def test_the_oldest_responses_go_first(folder: Path) -> None:
    async with Live(stored_responses=2) as live, openai_client(live) as client:
        kept = Kept(live, client, await serve(live, folder))
        first, *others = [await kept.ask(text) for text in ("a", "b", "c")]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        for one in others:
            assert (await client.responses.retrieve(one.id)).id == one.id


async def test_responses_outlive_the_server_in_a_folder(folder: Path, tmp_path: Path) -> None:
    async with Live(state_dir=str(tmp_path)) as live, openai_client(live) as client:
        made = await Kept(live, client, await serve(live, folder)).ask("My name is Ada.")
    async with Live(state_dir=str(tmp_path)) as live, openai_client(live) as client:
        kept = Kept(live, client, await serve(live, folder))
        await kept.ask("And now?", previous_response_id=made.id)
        assert "My name is Ada." in kept.prompt()
