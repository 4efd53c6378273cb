"""The official Anthropic client against a live server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from support.toys import Live, Scripted, chat_text, text_card, toy_card

WEATHER: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
async def client(live: Live, toy: Scripted) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=live.url, api_key="k", max_retries=0) as client:
        yield client


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_a_message_is_answered_whole(client: AsyncAnthropic) -> None:
    answer = await client.messages.create(model="org/toy", max_tokens=50, messages=said("THINK"), system="Be brief.")
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[1].text == "The answer."  # type: ignore[union-attr]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.cache_read_input_tokens == 3


async def test_a_message_streams(client: AsyncAnthropic, toy: Scripted) -> None:
    async with client.messages.stream(model="org/toy", max_tokens=50, messages=said("THINK")) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "The answer."
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 0
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == len(toy.requests[-1]["token_ids"])


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_can_be_left_out(client: AsyncAnthropic, stream: bool) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    asked: dict[str, Any] = {"model": "org/toy", "max_tokens": 1500, "messages": said("THINK"), "thinking": thinking}
    if stream:
        async with client.messages.stream(**asked) as events:
            answer: Any = await events.get_final_message()
    else:
        answer = await client.messages.create(**asked)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("", "The answer.")


async def test_a_stop_sequence_is_named(client: AsyncAnthropic) -> None:
    answer = await client.messages.create(
        model="org/toy", max_tokens=50, messages=said("STOPS"), stop_sequences=["three"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "three")
    short = await client.messages.create(model="org/toy", max_tokens=1, messages=said("STOPS"))
    assert short.stop_reason == "max_tokens"


async def test_a_tool_is_used_and_its_result_answered(client: AsyncAnthropic) -> None:
    answer = await client.messages.create(model="org/toy", max_tokens=90, messages=said("WEATHER"), tools=[WEATHER])
    assert answer.stop_reason == "tool_use"
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("weather", {"city": "Lyon"})
    history: Any = [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": [use.model_dump()]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]},
    ]
    again = await client.messages.create(model="org/toy", max_tokens=90, messages=history, tools=[WEATHER])
    assert again.content[0].text == "It is sunny."  # type: ignore[union-attr]


async def test_tool_use_streams(client: AsyncAnthropic) -> None:
    async with client.messages.stream(
        model="org/toy", max_tokens=90, messages=said("TWO CALLS"), tools=[WEATHER]
    ) as stream:
        final = await stream.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [{"city": "Lyon"}, {"city": "Köln"}]
    assert final.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("choice", "prompt"),
    [({"type": "tool", "name": "weather"}, "guided call"), ({"type": "any"}, "guided calls")],
)
async def test_a_forced_tool_is_used(client: AsyncAnthropic, choice: Any, prompt: str) -> None:
    answer = await client.messages.create(
        model="org/toy", max_tokens=90, messages=said(prompt), tools=[WEATHER], tool_choice=choice
    )
    assert answer.stop_reason == "tool_use"
    assert [block.name for block in answer.content if block.type == "tool_use"] == ["weather"]


async def test_tokens_are_counted_exactly(client: AsyncAnthropic, toy: Scripted) -> None:
    messages = said("Grüße aus Köln, how many tokens is this?")
    counted = await client.messages.count_tokens(model="org/toy", messages=messages, tools=[WEATHER], system="s")
    answer = await client.messages.create(model="org/toy", max_tokens=1, messages=messages, tools=[WEATHER], system="s")
    assert counted.input_tokens == len(toy.requests[-1]["token_ids"])
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == counted.input_tokens
    long = await client.messages.count_tokens(model="org/toy", messages=said("word " * 4000))
    assert long.input_tokens > 2048


async def test_models_are_listed_in_anthropics_words(client: AsyncAnthropic) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.type) for model in models] == [("org/toy", "model")]
    assert (await client.models.retrieve("org/toy")).display_name == "org/toy"


async def test_mistakes_are_raised_as_the_clients_own_errors(client: AsyncAnthropic) -> None:
    create: Any = client.messages.create
    with pytest.raises(anthropic.NotFoundError) as missing:
        await create(model="nobody", max_tokens=5, messages=said("x"))
    body: Any = missing.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await create(model="org/toy", max_tokens=5, messages=said("x"), extra_body={"temperature": 2})
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2048 maximum"):
        await create(model="org/toy", max_tokens=5, messages=said("word " * 4000))


async def test_answers_and_errors_carry_the_request_id_that_the_client_shows(client: AsyncAnthropic) -> None:
    answer = await client.messages.create(model="org/toy", max_tokens=5, messages=said("x"))
    assert answer._request_id
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(model="nobody", max_tokens=5, messages=said("x"))
    assert missing.value.request_id


async def test_a_tool_runner_goes_on_without_a_kept_thread(live: Live, client: AsyncAnthropic, folder: Path) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Lyon"}}</tool_call>'
    engine = Scripted({"sunny": "It is sunny.", "WEATHER": call})
    await live.serve(engine.generate, toy_card(folder, "runner", tool_call_parser="hermes"), "toy.runner.generate")

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    runner = client.beta.messages.tool_runner(model="runner", max_tokens=90, messages=said("WEATHER"), tools=[weather])
    last: Any = await runner.until_done()
    assert last.content[0].text == "It is sunny."
    assert "WEATHER" in engine.tokenizer.decode(engine.requests[-1]["token_ids"])


async def test_older_and_policy_fields_are_read(client: AsyncAnthropic, toy: Scripted) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    answer = await client.messages.with_raw_response.create(
        model="org/toy",
        max_tokens=50,
        messages=said("guided json"),
        extra_body={"output_format": {"type": "json_schema", "schema": schema}, "fallbacks": [{"model": "other"}]},
    )
    assert toy.requests[-1]["sampling_options"]["guided_decoding"]["json"] == schema
    assert "x-dynamo-warning" not in answer.headers, "no field is unknown"


async def test_documents_of_text_are_read(client: AsyncAnthropic, toy: Scripted) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "the plain text"}
    content: Any = [
        {"type": "document", "source": plain, "title": "A title", "context": "from a book", "citations": {}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "in blocks"}]}},
        {"type": "search_result", "source": "a.example", "title": "Found", "content": [{"type": "text", "text": "it"}]},
        {"type": "text", "text": "What is it?"},
    ]
    await client.messages.create(model="org/toy", max_tokens=5, messages=[{"role": "user", "content": content}])
    prompt = toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    for text in ("A title", "from a book", "the plain text", "in blocks", "Found", "a.example", "What is it?"):
        assert text in prompt
    used: Any = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document", "source": plain}]}
    history: Any = [*said("go"), {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    await client.messages.create(model="org/toy", max_tokens=5, messages=history)
    assert "the plain text" in toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    pdf: Any = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match="base64"):
        await client.messages.create(model="org/toy", max_tokens=5, messages=[{"role": "user", "content": [pdf]}])


async def test_a_streamed_thought_is_signed_before_it_ends(client: AsyncAnthropic) -> None:
    stream: Any = await client.messages.create(model="org/toy", max_tokens=50, messages=said("THINK"), stream=True)
    kinds = [event.delta.type if event.type == "content_block_delta" else event.type async for event in stream]
    assert kinds[kinds.index("signature_delta") + 1] == "content_block_stop"
    assert kinds.count("signature_delta") == 1


async def test_structured_output_is_refused_where_the_engine_cannot(
    live: Live, client: AsyncAnthropic, folder: Path
) -> None:
    await live.serve(Scripted().generate, toy_card(folder, "plain"), "toy.plain.generate")
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        forced: Any = choice
        with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
            await client.messages.create(
                model="plain", max_tokens=5, messages=said("x"), tools=[WEATHER], tool_choice=forced
            )


async def test_an_error_after_the_first_token_is_raised_while_streaming(
    live: Live, client: AsyncAnthropic, folder: Path
) -> None:
    async def half(request: Any) -> AsyncIterator[Any]:
        yield {"token_ids": [300]}
        raise RuntimeError("the pump is dry")

    await live.serve(half, toy_card(folder, "half"), "toy.half.generate")
    with pytest.raises(anthropic.APIStatusError, match="dry"):
        async with client.messages.stream(model="half", max_tokens=5, messages=said("x")) as stream:
            await stream.get_final_message()


async def test_a_text_worker_serves_messages_but_counts_no_tokens(live: Live, client: AsyncAnthropic) -> None:
    await live.serve(chat_text, text_card("text"), "toy.text.generate")
    answer = await client.messages.create(model="text", max_tokens=5, messages=said("hello"))
    assert [block.type for block in answer.content] == ["thinking", "text"]
    async with client.messages.stream(model="text", max_tokens=50, messages=said("x"), tools=[WEATHER]) as stream:
        final = await stream.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [{"city": "Lyon"}]
    with pytest.raises(anthropic.BadRequestError, match="worker only"):
        await client.messages.count_tokens(model="text", messages=said("hello"))
