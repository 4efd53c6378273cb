"""Guided decoding, where an engine has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.delivery.continuation import continuation
from engines.conformance.conftest import Started, only
from engines.conformance.features import FEATURES, ON_A_GPU, Has, those
from support.asking import asking, tiny_end, tiny_tokenizer
from support.sinks import Kept
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Grace", "Alan"]},
        "motto": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["old", "young"]}, "maxItems": 2},
    },
    "required": ["name", "motto", "age", "tags"],
    "additionalProperties": False,
}


REGEX = "([a-f]{3}-){8}[0-9]"


def text(kept: Kept) -> str:
    assert kept.error is None, kept.error
    return tiny_tokenizer().decode(kept.ids)


def fits(value: Any) -> bool:
    return (
        set(value) == {"name", "motto", "age", "tags"}
        and len(value["motto"]) <= 12
        and value["name"] in ("Ada", "Grace", "Alan")
        and isinstance(value["age"], int)
        and 0 <= value["age"] <= 150
        and all(tag in ("old", "young") for tag in value["tags"])
    )


@only(those("guided"))
async def test_100_of_100_guided_answers_are_valid(started: Started) -> None:
    requests = [
        asking("Describe a person", guided_decoding={"json": PERSON}, temperature=1.5, seed=seed, max_tokens=150)
        for seed in range(100)
    ]
    said = [text(kept) for kept in await started.ask(*requests)]
    assert all(fits(json.loads(each)) for each in said), said
    assert len(set(said)) > 10


CALL = {
    "type": "object",
    "properties": {"name": {"const": "weather"}},
    "required": ["name"],
    "additionalProperties": False,
}
CALLS = {"json": CALL, "begin": "<tool_call>\n", "end": "\n</tool_call>", "separator": "\n", "limit": 1}
FORMS: dict[str, tuple[dict[str, Any], Callable[[str], object]]] = {
    "regex": ({"regex": "[0-9]{3}-[a-z]{2}"}, lambda said: re.fullmatch("[0-9]{3}-[a-z]{2}", said)),
    "choice": ({"choice": ["Rome (Italy)", "a|b"]}, lambda said: said in ("Rome (Italy)", "a|b")),
    "grammar": ({"grammar": 'start: "yes" | "no"'}, lambda said: said in ("yes", "no")),
    "tool_calls": (
        {"tool_calls": CALLS},
        lambda said: json.loads(said.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))["name"] == "weather",
    ),
}


@only(those("guided"))
@pytest.mark.parametrize("form", FORMS)
async def test_a_guided_answer_follows_its_form(started: Started, form: str) -> None:
    guidance, follows = FORMS[form]
    if form == "grammar" and started.name in ON_A_GPU:
        guidance = {"grammar": 'root ::= "yes" | "no"'}
    said = text(await started.one(asking("Well?", guided_decoding=guidance, max_tokens=60)))
    assert follows(said), said


@only(those("resumed"))
@pytest.mark.parametrize("guidance", [{"json": PERSON}, {"regex": REGEX}], ids=["json", "regex"])
async def test_an_answer_that_another_worker_began_is_continued(started: Started, guidance: dict[str, Any]) -> None:
    def request(begun: list[int], seed: int) -> PreprocessedRequest:
        options = {"guided_decoding": guidance, "temperature": 1.0, "max_tokens": 200, "seed": seed}
        return continuation(asking("Describe a person", **options), begun)

    def is_valid(said: str) -> bool:
        return bool(re.fullmatch(REGEX, said)) if "regex" in guidance else fits(json.loads(said))

    whole = spoken(await started.one(request([], 0)))
    cuts = range(1, len(whole))
    rests = await started.ask(*(request(whole[:cut], cut) for cut in cuts))
    said = {tiny_tokenizer().decode([*whole[:cut], *spoken(rest)]) for cut, rest in zip(cuts, rests, strict=True)}
    assert len(said) > 1
    assert all(map(is_valid, said)), said


def spoken(kept: Kept) -> list[int]:
    assert kept.error is None, kept.error
    return [id for id in kept.ids if id != tiny_end()]


@only(those("guided"))
@pytest.mark.parametrize("guidance", [{"regex": "(["}, {"json": {"type": "no such type"}}, {"unknown": 1}], ids=str)
async def test_a_wrong_form_is_the_clients_mistake(started: Started, guidance: dict[str, Any]) -> None:
    kept = await started.one(asking("Well?", guided_decoding=guidance))
    assert isinstance(kept.error, InvalidArgument)
    await until(started.engine.quiet)


async def test_a_structural_tag_is_followed_or_refused(started: Started) -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": CALL}, "end": "</a>",
        },
    }  # fmt: skip
    kept = await started.one(asking("Well?", guided_decoding={"structural_tag": tag}, max_tokens=60))
    if FEATURES["structural_tag"].engines[started.name] is Has.REFUSED:
        assert isinstance(kept.error, InvalidArgument)
        assert "guided_decoding" in kept.error.message
        return
    said = text(kept)
    assert json.loads(said.removeprefix("<a>").removesuffix("</a>"))["name"] == "weather"
