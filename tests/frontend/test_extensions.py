"""Fields beyond the published APIs: unknown ones, those that mean nothing, and what engines know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.models import sentencepiece_model
from support.toys import Live, Scripted, toy_card

SAID = [{"role": "user", "content": "STOPS"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "STOPS"},
    "/v1/responses": {"input": "STOPS"},
    "/v1/messages": {"messages": SAID, "max_tokens": 90},
}
EVERYWHERE = pytest.mark.parametrize("path", ROUTES)


def body(path: str, **fields: Any) -> dict[str, Any]:
    return {"model": "org/toy", **ROUTES[path], **fields}


@EVERYWHERE
@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_fields_are_ignored_and_named_in_a_header(
    live: Live, toy: Scripted, path: str, stream: bool
) -> None:
    asked = body(path, colour=1, **{"größe\r\n": 2}, nvext={"taste": 3}, stream=stream)
    async with live.http.post(path, json=asked) as answer:
        assert answer.status == 200, await answer.text()
        expected = r"ignored unknown fields: colour, gr\xf6\xdfe\r\n, nvext.taste"
        assert answer.headers["x-dynamo-warning"] == expected
    async with live.http.post(path, json=body(path)) as answer:
        assert "x-dynamo-warning" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("n", [1, 2])
async def test_unknown_fields_are_named_once_in_the_body(live: Live, toy: Scripted, path: str, n: int) -> None:
    expected = {"warnings": ["ignored unknown fields: temprature (did you mean temperature?)"]}
    asked = body(path, temprature=1, n=n)
    assert (await live.post(path, asked))[1]["nvext"] == expected
    lines = (await live.events(path, asked | {"stream": True})).split("\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [chunk["nvext"] for chunk in chunks if "nvext" in chunk] == [expected]
    assert chunks[-1]["nvext"] == expected
    assert chunks[-1]["choices"][0]["finish_reason"]
    timed = (await live.post(path, asked | {"nvext": {"extra_fields": ["timing"]}}))[1]["nvext"]
    assert set(timed) == {"warnings", "timing"}
    assert "nvext" not in (await live.post(path, body(path, n=n)))[1]


@pytest.mark.parametrize(
    ("field", "meant"), [("temprature", "temperature"), ("--stop", "stop"), ("max_token", "max_tokens")]
)
async def test_a_misspelt_field_names_the_nearest_in_header_and_log(
    live: Live, toy: Scripted, caplog: pytest.LogCaptureFixture, field: str, meant: str
) -> None:
    path, expected = "/v1/chat/completions", f"ignored unknown fields: {field} (did you mean {meant}?)"
    with caplog.at_level("INFO", "dynamo.frontend.bodies"):
        for _ in range(2):
            async with live.http.post(path, json=body(path, **{field: 1})) as answer:
                assert answer.headers["x-dynamo-warning"] == expected
    assert [record.getMessage() for record in caplog.records if "did you mean" in record.getMessage()] in (
        [f"{path}: {expected}"], [],  # said once per process
    )  # fmt: skip


@EVERYWHERE
async def test_a_stream_tells_proxies_not_to_hold_it_back(live: Live, toy: Scripted, path: str) -> None:
    async with live.http.post(path, json=body(path, stream=True)) as answer:
        assert answer.headers.getall("X-Accel-Buffering") == ["no"]
        await answer.read()


@pytest.mark.parametrize("config", [{"refuse_unknown_fields": True}, {"ignore_unknown_fields": False}])
async def test_unknown_fields_are_refused_by_a_flag(folder: Path, config: dict[str, bool]) -> None:
    async with Live(**config) as live:
        await live.serve(Scripted().generate, toy_card(folder, "org/toy"))
        status, answer = await live.post("/v1/chat/completions", body("/v1/chat/completions", colour=1))
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "colour", "unsupported_parameter")


@EVERYWHERE
async def test_engines_extensions_are_the_same_on_every_route(live: Live, toy: Scripted, path: str) -> None:
    fields = {
        "min_p": 0.1, "top_k": 7, "seed": 3, "repetition_penalty": 1.5, "ignore_eos": False, "stop": "three",
        "stop_token_ids": [9], "allowed_token_ids": [5, 6], "bad_words": ["no"], "use_beam_search": False,
        "structured_outputs": {"regex": "a+"}, "truncate_prompt_tokens": 2, "cache_salt": "s",
    }  # fmt: skip
    status, answer = await live.post(path, body(path, **fields))
    assert status == 200, answer
    sent = toy.requests[-1]
    sampling = sent["sampling_options"]
    assert (sampling["min_p"], sampling["top_k"], sampling["seed"]) == (0.1, 7, 3)
    assert sampling["repetition_penalty"] == 1.5
    assert sampling["guided_decoding"] == {"regex": "a+"}
    assert (sent["stop_conditions"]["stop"], sent["stop_conditions"]["stop_token_ids"]) == (["three"], [9])
    assert sent["extra_args"] == {"sampling_options": {"allowed_token_ids": [5, 6], "bad_words": ["no"]}}
    assert sent["routing"]["cache_salt"] == "s"
    assert len(sent["token_ids"]) == 2


async def test_a_prompt_is_cut_to_what_the_context_leaves(live: Live, toy: Scripted) -> None:
    asked = {"model": "org/toy", "prompt": "word " * 4000 + "END", "max_tokens": 48, "truncate_prompt_tokens": -1}
    assert (await live.post("/v1/completions", asked))[0] == 200
    assert len(toy.requests[-1]["token_ids"]) == 2000
    assert toy.tokenizer.decode(toy.requests[-1]["token_ids"]).endswith("END")


async def test_the_tokenizers_own_special_tokens_are_added_if_asked_for(live: Live, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    async def recording(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        seen.append(request["token_ids"])
        yield {"token_ids": [300], "finish_reason": "length"}

    await live.serve(recording, toy_card(sentencepiece_model(tmp_path / "model"), "begun"))
    for wanted in (True, False, None):
        asked = {"model": "begun", "prompt": "hello", "max_tokens": 1, "add_special_tokens": wanted}
        assert (await live.post("/v1/completions", asked))[0] == 200
    begin = 1
    assert seen == [[begin, *seen[1]], seen[1], seen[1]]


async def test_a_nucleus_of_no_size_is_the_likeliest_token(live: Live, toy: Scripted) -> None:
    assert (await live.post("/v1/completions", body("/v1/completions", top_p=0)))[0] == 200
    sampling = toy.requests[-1]["sampling_options"]
    assert (sampling["top_p"], sampling["top_k"]) == (1.0, 1)


async def test_only_allowed_tools_are_offered(live: Live, toy: Scripted) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("red", "green", "blue")]
    allowed: dict[str, Any] = {"mode": "auto", "tools": [tools[0], tools[2]]}
    choice: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": allowed}
    path = "/v1/chat/completions"
    status, answer = await live.post(path, body(path, tools=tools, tool_choice=choice))
    assert status == 200, answer
    prompt = toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    assert [name in prompt for name in ("red", "green", "blue")] == [True, False, True]
    flat = [{"type": "function", "name": name} for name in ("red", "green", "blue")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [flat[1]]}
    status, answer = await live.post("/v1/responses", body("/v1/responses", tools=flat, tool_choice=choice))
    assert status == 200, answer
    prompt = toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    assert [name in prompt for name in ("red", "green", "blue")] == [False, True, False]
    allowed["tools"] = [{"type": "function", "function": {"name": "pink"}}]
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert (await live.post(path, body(path, tools=tools, tool_choice=choice)))[0] == 400


async def test_a_prompt_alone_has_the_log_probabilities_of_its_tokens(live: Live, toy: Scripted) -> None:
    asked = {"model": "org/toy", "prompt": "one two three", "max_tokens": 0, "echo": True, "logprobs": 1}
    status, answer = await live.post("/v1/completions", asked)
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two three", "length")
    values = choice["logprobs"]["token_logprobs"]
    assert values == [None] + [-1.0] * (len(toy.requests[0]["token_ids"]) - 1)
    assert "".join(choice["logprobs"]["tokens"]) == "one two three"
    assert answer["usage"]["completion_tokens"] == 0
    status, answer = await live.post("/v1/completions", {**asked, "echo": False})
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


async def test_an_engine_without_prompt_logprobs_refuses_a_prompt_alone(live: Live, folder: Path) -> None:
    async def blind(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"token_ids": [300], "finish_reason": "length"}

    await live.serve(blind, toy_card(folder, "blind"))
    asked = {"model": "blind", "prompt": "one two three", "max_tokens": 0, "echo": True, "logprobs": 1}
    status, answer = await live.post("/v1/completions", asked)
    assert (status, answer["error"]["param"]) == (400, "logprobs")
    assert "gives no log probabilities of a prompt" in answer["error"]["message"]
