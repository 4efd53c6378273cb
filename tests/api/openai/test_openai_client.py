"""The official OpenAI client against a live server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from dynamo.llm import ModelType
from support.toys import BOTH, Live, Scripted, chat_text, embed_text, embed_tokens, text_card, toy_card

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "trip", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
async def client(live: Live, toy: Scripted) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_a_chat_is_answered_whole(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="org/toy", messages=said("EMOJI"))
    assert answer.choices[0].message.content == "🎉 Grüße, 你好!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_a_chat_streams(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="org/toy", messages=said("EMOJI"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "🎉 Grüße, 你好!"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_usage_comes_with_every_chunk_where_that_is_asked_for(client: AsyncOpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.chat.completions.create(
        model="org/toy", messages=said("STOPS"), stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] > 3
    texts = await client.completions.create(model="org/toy", prompt="STOPS", stream=True, stream_options=options)
    assert all([chunk.usage async for chunk in texts])


async def test_without_being_asked_no_chunk_mentions_usage(live: Live, toy: Scripted) -> None:
    body = {"model": "org/toy", "messages": said("STOPS"), "stream": True}
    assert "usage" not in await live.events("/v1/chat/completions", body)


async def test_two_choices_differ_by_their_seeds_and_pay_the_prompt_once(client: AsyncOpenAI, toy: Scripted) -> None:
    one = await client.chat.completions.create(model="org/toy", messages=said("x"), seed=7)
    two = await client.chat.completions.create(model="org/toy", messages=said("x"), seed=7, n=2)
    assert [choice.message.content for choice in two.choices] == ["seed 7", "seed 8"]
    assert one.usage
    assert two.usage
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 2 * one.usage.completion_tokens
    assert all(request["sampling_options"]["n"] is None for request in toy.requests)


async def test_two_choices_stream_side_by_side(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="org/toy", messages=said("x"), seed=1, n=2, stream=True)
    texts = {0: "", 1: ""}
    finished = set()
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finished.add(choice.index)
    assert texts == {0: "seed 1", 1: "seed 2"}
    assert finished == {0, 1}


@pytest.mark.parametrize("top", [None, 0, 2])
async def test_logprobs_are_those_of_the_tokens_shown(client: AsyncOpenAI, toy: Scripted, top: int | None) -> None:
    more: dict[str, Any] = {} if top is None else {"top_logprobs": top}
    answer = await client.chat.completions.create(model="org/toy", messages=said("EMOJI"), logprobs=True, **more)
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    told = b"".join(bytes(token.bytes or ()) for token in logprobs.content)
    assert told.decode() == answer.choices[0].message.content
    assert [token.logprob for token in logprobs.content] == [-0.5 - n for n in range(len(logprobs.content))]
    assert {len(token.top_logprobs) for token in logprobs.content} == {top or 0}


async def test_logprobs_stream_and_stop_with_a_stop_string(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="org/toy", messages=said("STOPS"), logprobs=True, stop=[" three"], stream=True
    )
    text, told = "", b""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        for token in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ():
            told += bytes(token.bytes or ())
    assert text == "one two"
    assert told.decode() == "one two"


async def test_an_impossible_token_has_a_finite_logprob(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="org/toy", messages=said("STOPS"), logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs
    assert answer.choices[0].logprobs.content
    assert answer.choices[0].logprobs.content[0].top_logprobs[-1].logprob == -9999.0


async def test_thoughts_are_told_apart_and_counted(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="org/toy", messages=said("THINK"))
    message = answer.choices[0].message
    assert message.content == "The answer."
    assert message.reasoning_content == "let me see"  # type: ignore[attr-defined]
    assert answer.usage
    assert answer.usage.completion_tokens_details
    reasoning = answer.usage.completion_tokens_details.reasoning_tokens
    assert reasoning
    assert 0 < reasoning < answer.usage.completion_tokens


async def test_a_tool_is_called_and_its_result_answered(client: AsyncOpenAI) -> None:
    messages = said("WEATHER?")
    answer = await client.chat.completions.create(model="org/toy", messages=messages, tools=[WEATHER])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Lyon"})
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    again = await client.chat.completions.create(model="org/toy", messages=messages[1:], tools=[WEATHER])
    assert again.choices[0].message.tool_calls or again.choices[0].message.content


async def test_tool_calls_stream(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="org/toy", messages=said("TWO CALLS"), tools=[WEATHER]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Lyon", "Köln"]
    assert final.choices[0].finish_reason == "tool_calls"


async def test_without_parallel_calls_only_the_first_is_kept(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="org/toy", messages=said("TWO CALLS"), tools=[WEATHER], parallel_tool_calls=False
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert [json.loads(call.function.arguments)["city"] for call in calls if call.type == "function"] == ["Lyon"]


async def test_a_required_call_is_guided_and_read_back(client: AsyncOpenAI, toy: Scripted) -> None:
    answer = await client.chat.completions.create(
        model="org/toy", messages=said("guided calls"), tools=[WEATHER], tool_choice="required"
    )
    guidance = toy.requests[-1]["sampling_options"]["guided_decoding"]
    assert guidance["json"]["type"] == "array"
    assert guidance["tool_calls"]["begin"].startswith("<tool_call>"), "the model's own form, for engines that follow it"
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Lyon"}
    assert choice.message.content is None


async def test_a_named_call_is_guided_by_its_parameters(client: AsyncOpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    stream = await client.chat.completions.create(
        model="org/toy", messages=said("guided call"), tools=[WEATHER], tool_choice=named, stream=True
    )
    name, arguments, finish = "", "", None
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (name, json.loads(arguments), finish) == ("weather", {"city": "Köln"}, "stop")


async def test_structured_output_is_taken_by_an_engine_that_can(client: AsyncOpenAI, toy: Scripted) -> None:
    answer = await client.chat.completions.create(model="org/toy", messages=said("guided json"), response_format=SCHEMA)
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Lyon", "days": 2}
    assert toy.requests[-1]["sampling_options"]["guided_decoding"]["json"] == SCHEMA["json_schema"]["schema"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("response_format", SCHEMA), ("response_format", {"type": "json_object"}), ("tool_choice", "required")],
)
async def test_structured_output_is_refused_where_the_engine_cannot(
    live: Live, client: AsyncOpenAI, folder: Path, field: str, value: Any
) -> None:
    await live.serve(Scripted().generate, toy_card(folder, "plain"), "toy.plain.generate")
    await live.serve(chat_text, text_card("text", guided_decoding=False), "toy.text.generate")
    for model in ("plain", "text"):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=model, messages=said("x"), tools=[WEATHER], **{field: value})
        assert refused.value.param == field
        assert refused.value.code == "unsupported_parameter"


async def test_a_completion_whole_and_streamed(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(model="org/toy", prompt="STOPS")
    assert whole.choices[0].text == "one two three four"
    stream = await client.completions.create(model="org/toy", prompt=["STOPS", "EMOJI"], stream=True)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["one two three four", "🎉 Grüße, 你好!"]


async def test_prompts_may_be_token_ids(client: AsyncOpenAI, toy: Scripted) -> None:
    ids = toy.tokenizer.encode("STOPS")
    for prompt in (ids, [ids, ids]):
        answer = await client.completions.create(model="org/toy", prompt=prompt)
        assert answer.choices[-1].text == "one two three four"
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        await client.completions.create(model="org/toy", prompt=[10**6])


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_repeats_the_prompt_with_its_logprobs(client: AsyncOpenAI, toy: Scripted, stream: bool) -> None:
    answer: Any = await client.completions.create(
        model="org/toy", prompt="say STOPS", echo=True, logprobs=1, stream=stream
    )
    parts = [chunk.choices[0] async for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(part.text for part in parts)
    assert text == "say STOPSone two three four"
    tokens = [token for part in parts for token in (part.logprobs.tokens if part.logprobs else ())]
    offsets = [offset for part in parts for offset in (part.logprobs.text_offset if part.logprobs else ())]
    logprobs = [value for part in parts for value in (part.logprobs.token_logprobs if part.logprobs else ())]
    assert "".join(tokens) == text
    assert offsets == [sum(map(len, tokens[:n])) for n in range(len(tokens))]
    prompt = len(toy.tokenizer.encode("say STOPS"))
    assert logprobs[:prompt] == [None] + [-1.0] * (prompt - 1)
    assert logprobs[prompt] == -0.5


async def test_best_of_keeps_the_likeliest(client: AsyncOpenAI, toy: Scripted) -> None:
    """The scripted engine's tokens get less likely with each one: the shortest answer is the best."""
    toy.answer = lambda _, request: ["a b c d e", "a", "a b c"][request["sampling_options"]["seed"]]  # type: ignore[assignment, method-assign]
    answer = await client.completions.create(model="org/toy", prompt="x", n=2, best_of=3, seed=0)
    assert [choice.text for choice in answer.choices] == ["a", "a b c"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is None


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_embeddings_of_tokens_and_of_text(live: Live, client: AsyncOpenAI, folder: Path, encoding: Any) -> None:
    await live.serve(embed_tokens, toy_card(folder, "embed", ModelType.Embedding), "toy.embed.generate")
    await live.serve(embed_text, text_card("embed-text", ModelType.Embedding), "toy.embed-text.generate")
    tokens = await client.embeddings.create(model="embed", input=["a b", "c"], encoding_format=encoding)
    text = await client.embeddings.create(model="embed-text", input=["abcd", "e"], encoding_format=encoding)
    if encoding == "float":
        assert tokens.data[0].embedding[1:] == [0.25, 0.5, 0.75]
        assert [one.embedding for one in text.data] == [[4.0, 0.5], [1.0, 0.5]]
        assert tokens.usage.prompt_tokens == sum(one.embedding[0] for one in tokens.data)
    else:
        assert all(isinstance(one.embedding, str) for one in (*tokens.data, *text.data))
    default = await client.embeddings.create(model="embed", input=[1, 2, 3], dimensions=8)
    assert default.data[0].embedding == [3.0, *(0.25 * n for n in range(1, 8))]
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        await client.embeddings.create(model="embed-text", input="x", dimensions=8)


async def test_a_response_whole_and_streamed(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(model="org/toy", input="THINK", max_output_tokens=50)
    assert whole.output_text == "The answer."
    assert whole.status == "completed"
    stream = await client.responses.create(model="org/toy", input="THINK", stream=True)
    events = [event async for event in stream]
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.output == []
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "The answer."
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "The answer."
    assert last.response.usage
    assert last.response.usage.output_tokens_details.reasoning_tokens > 0


async def test_a_response_calls_a_tool(client: AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": WEATHER["function"]["parameters"]}
    stream = await client.responses.create(model="org/toy", input="WEATHER", tools=[tool], stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.completed"
    (call,) = [item for item in last.response.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Lyon"}
    history: Any = [
        {"role": "user", "content": "go on"},
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    again = await client.responses.create(model="org/toy", input=history, tools=[tool])
    assert again.output_text == "It is sunny."


async def test_a_text_worker_serves_every_chat_route(live: Live, client: AsyncOpenAI) -> None:
    await live.serve(chat_text, text_card("text", BOTH), "toy.text.generate")
    chat = await client.chat.completions.create(model="text", messages=said("hello"))
    assert chat.choices[0].message.content == "hello"
    response = await client.responses.create(model="text", input="hello")
    assert response.output_text == "hello"
    assert response.usage
    assert response.usage.output_tokens == 2
    stream = await client.responses.create(model="text", input="hello", stream=True)
    assert [event async for event in stream][-1].type == "response.completed"


async def test_models_are_listed_and_shown_by_ids_with_slashes(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["org/toy"]
    assert (await client.models.retrieve("org/toy")).id == "org/toy"


async def test_mistakes_are_raised_as_the_clients_own_errors(client: AsyncOpenAI) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="org/toy") as missing:
        await create(model="nobody", messages=said("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        await create(model="org/toy", messages=said("x"), temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens") as long:
        await create(model="org/toy", messages=said("word " * 3000))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="does not serve"):
        await client.embeddings.create(model="org/toy", input="x")
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        await client.responses.create(model="org/toy", input="x", max_output_tokens=0)


async def test_an_engine_that_raises_is_a_server_error_with_a_request_id(
    live: Live, client: AsyncOpenAI, folder: Path
) -> None:
    async def broken(request: Any) -> AsyncIterator[Any]:
        raise RuntimeError("the pump is dry")
        yield

    await live.serve(broken, toy_card(folder, "broken"), "toy.broken.generate")
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model="broken", messages=said("x"), extra_headers={"x-request-id": "abc"})
    assert "abc" in failed.value.message
    assert failed.value.request_id == "abc"


async def test_an_error_after_the_first_token_ends_the_stream_with_an_error(
    live: Live, client: AsyncOpenAI, folder: Path
) -> None:
    async def half(request: Any) -> AsyncIterator[Any]:
        yield {"token_ids": [300]}
        raise RuntimeError("the pump is dry")

    await live.serve(half, toy_card(folder, "half"), "toy.half.generate")
    stream = await client.chat.completions.create(model="half", messages=said("x"), stream=True)
    with pytest.raises(openai.APIError, match="dry"):
        async for _ in stream:
            pass
