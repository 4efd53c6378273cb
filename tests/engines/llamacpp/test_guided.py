"""Guided decoding: the answer follows the grammar, on one line, and ends within its limit where that is possible."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.delivery.continuation import continuation
from support.asking import answer, asking, text, tiny_tokenizer
from support.sinks import Kept

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "tags", "address"],
}


def fits(value: Any) -> bool:
    return (
        set(value) == {"name", "age", "tags", "address"}
        and isinstance(value["name"], str)
        and isinstance(value["age"], int)
        and all(isinstance(tag, str) for tag in value["tags"])
        and isinstance(value["address"]["city"], str)
    )


async def test_100_of_100_wild_answers_are_valid_compact_json_within_their_limit(engine: LlamaCppEngine) -> None:
    sinks = [Kept() for _ in range(100)]
    for seed, sink in enumerate(sinks):
        options: dict[str, Any] = {"temperature": 1.5, "seed": seed, "max_tokens": 40 + seed % 40}
        engine.generate(asking("Describe a person", guided_decoding={"json": PERSON}, **options), sink)
    await asyncio.gather(*(sink.done for sink in sinks))
    for sink in sinks:
        said = tiny_tokenizer().decode(sink.ids)
        assert fits(json.loads(said)), said
        assert "\n" not in said


@pytest.mark.parametrize("limit", range(24, 40))
async def test_an_answer_is_led_to_its_end_before_the_limit(engine: LlamaCppEngine, limit: int) -> None:
    schema = {"type": "object", "properties": {"story": {"type": "string"}}, "required": ["story"]}
    request = asking("Tell a long story", guided_decoding={"json": schema}, temperature=2.0, seed=1, max_tokens=limit)
    sink = await answer(engine, request)
    assert list(json.loads(tiny_tokenizer().decode(sink.ids))) == ["story"]
    assert len(sink.ids) <= limit


async def test_a_limit_that_no_answer_fits_into_cuts_it(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking("Describe a person", guided_decoding={"json": PERSON}, max_tokens=5))
    assert (len(sink.ids), sink.last.finish_reason) == (5, "length")


async def test_a_regular_expression_is_followed(engine: LlamaCppEngine) -> None:
    said = await text(engine, asking("A number?", guided_decoding={"regex": r"[0-9]{3}-[a-z]{2}"}, temperature=1.0))
    assert re.fullmatch(r"[0-9]{3}-[a-z]{2}", said)


async def test_one_of_the_choices_is_said(engine: LlamaCppEngine) -> None:
    choices = ["Rome (Italy)", "a|b", "Oslo."]
    for seed in range(5):
        request = asking("Which?", guided_decoding={"choice": choices}, temperature=2.0, seed=seed)
        assert await text(engine, request) in choices


async def test_a_grammar_is_followed(engine: LlamaCppEngine) -> None:
    grammar = 'start: "yes" | "no" ", " /[a-z]{2,4}/'
    said = await text(engine, asking("Well?", guided_decoding={"grammar": grammar}, temperature=2.0, seed=2))
    assert re.fullmatch(r"yes|no, [a-z]{2,4}", said)


async def test_tool_calls_are_written_in_the_models_own_form(engine: LlamaCppEngine) -> None:
    call = {
        "type": "object",
        "properties": {"name": {"const": "weather"}, "arguments": {"type": "object", "properties": {}}},
        "required": ["name", "arguments"],
    }
    form = {"json": call, "begin": "<tool_call>\n", "end": "\n</tool_call>", "separator": "\n", "limit": 1}
    said = await text(engine, asking("Weather?", guided_decoding={"tool_calls": form}, max_tokens=60))
    assert json.loads(said.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))["name"] == "weather"


@pytest.mark.parametrize(
    "guidance",
    [
        {"regex": "(["},
        {"json": "{"},
        {"json": {"type": "no such type"}},
        {"grammar": "start: missing"},
        {"tool_calls": {"begin": 1}},
        {"unknown": 1},
        {"json": {}, "whitespace_pattern": " "},
    ],
    ids=str,
)
async def test_a_wrong_grammar_is_the_clients_mistake(engine: LlamaCppEngine, guidance: dict[str, Any]) -> None:
    sink = await answer(engine, asking("x", guided_decoding=guidance))
    assert isinstance(sink.error, InvalidArgument)
    assert engine.quiet()


async def test_an_abort_while_the_grammar_compiles_leaves_nothing(engine: LlamaCppEngine) -> None:
    sink = Kept()
    engine.generate(asking("x", guided_decoding={"json": PERSON}), sink).abort()
    assert sink.last.finish_reason == "cancelled"
    assert (await answer(engine, asking("Say hello", guided_decoding={"choice": ["hello"]}))).error is None
    assert engine.quiet()
    assert engine.blocks.in_use == 0


async def test_an_answer_that_is_complete_ends_where_a_longer_one_would_be_cut(engine: LlamaCppEngine) -> None:
    (more,) = tiny_tokenizer().encode("y")
    guided: dict[str, Any] = {"guided_decoding": {"regex": "x(y{40})?"}, "logit_bias": {str(more): 100.0}}
    sink = await answer(engine, asking("Say hello", max_tokens=10, **guided))
    assert tiny_tokenizer().decode(sink.ids) == "x"
    assert sink.last.finish_reason in ("stop", "eos")


@pytest.mark.parametrize("options", [{}, {"presence_penalty": 1.0}])
async def test_an_answer_is_continued_from_any_token(engine: LlamaCppEngine, options: dict[str, Any]) -> None:
    request = asking("Describe a person", guided_decoding={"json": PERSON}, max_tokens=60, **options)
    whole = (await answer(engine, request)).ids
    for taken in (*range(1, len(whole) - 1, 5), len(whole) - 1):
        rest = await answer(engine, continuation(request, whole[:taken]))
        assert (taken, whole[:taken] + rest.ids, rest.items[-1].finish_reason) == (taken, whole, "stop")


async def test_an_answer_that_lacks_nothing_but_its_end_is_ended(engine: LlamaCppEngine) -> None:
    request = asking("Well?", guided_decoding={"choice": ["hello"]})
    whole = (await answer(engine, request)).ids
    rest = await answer(engine, continuation(request, whole))
    assert (rest.ids, rest.items[-1].finish_reason, rest.error) == ([], "stop", None)
    assert engine.quiet()


async def test_an_answer_that_left_the_grammar_is_not_continued(engine: LlamaCppEngine) -> None:
    request = asking("Well?", guided_decoding={"choice": ["hello"]})
    rest = await answer(engine, continuation(request, tiny_tokenizer().encode("good")))
    assert isinstance(rest.error, InvalidArgument)
