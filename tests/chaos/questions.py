"""Requests of several APIs, drawn by a seed, and their answers in a form that can be compared."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Sequence
from typing import Any

import aiohttp
from msgspec import Struct

_WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "river",
    "hello",
    "world",
    "capital",
    "France",
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "sane": {"type": "boolean"},
    },
    "required": ["name", "age", "sane"],
    "additionalProperties": False,
}
_VARIES = ("id", "created", "created_at", "completed_at", "item_id", "prompt_tokens_details", "input_tokens_details")
"""Fields that differ between two undisturbed answers to one question."""


CLEAR_LEAD = 0.1
"""By how much the logarithm of a clear choice leads; rounding was seen to move it by a hundredth."""


class Question(Struct, frozen=True):
    path: str
    body: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.path} {str(self.body)[:200]}"

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


class NoAnswer(Exception):
    """A status other than 200, or an error in the middle of a stream."""


def questions(seed: int, count: int, model: str, *, guided: float = 0.0, sampled: bool = True) -> list[Question]:
    """Requests whose answers are determined: greedy, or `sampled` with a seed.

    A share of `guided` is guided by a schema, which needs an engine that can do that. What a real engine samples with a
    seed depends on what it computes beside, see `clear`.
    """
    chance = random.Random(f"questions {seed}")
    return [_question(chance, model, guided, sampled) for _ in range(count)]


def _question(chance: random.Random, model: str, guided: float, sampled: bool) -> Question:
    text = " ".join(chance.choices(_WORDS, k=chance.choice((3, 30, 200))))
    body: dict[str, Any] = {"model": model, "temperature": 0, "stream": chance.random() < 0.6}
    tokens = chance.randint(10, 80)
    if guided and chance.random() < guided:
        messages = [{"role": "user", "content": text}]
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}}
        return Question(
            "/v1/chat/completions", body | {"messages": messages, "max_tokens": 60, "response_format": schema}
        )
    match chance.randrange(5):
        case 0 | 1:
            if body["stream"]:
                body["stream_options"] = {"include_usage": True}
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
            return Question("/v1/chat/completions", body)
        case 2:
            body |= {"prompt": text, "max_tokens": tokens, "stop": ["zq", "jumps over"]}
            if chance.random() < 0.5 and sampled:
                body |= {"n": 2, "seed": 7, "temperature": 1}
            return Question("/v1/completions", body)
        case 3:
            return Question("/v1/responses", body | {"input": text, "max_output_tokens": tokens, "store": False})
        case _:
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
            return Question("/v1/messages", body)


async def clear(session: aiohttp.ClientSession, url: str, pool: Sequence[Question]) -> list[Question]:
    """Without the questions of whose answers any token leads the next best one by little.

    A real engine rounds sums in another way when it computes something else beside, or a prompt that was continued:
    such tokens change places with no fault at all. Guided answers are kept, as their grammar decides most tokens.
    """
    leads = await asyncio.gather(*(_least_lead(session, url, question) for question in pool))
    return [question for question, lead in zip(pool, leads, strict=True) if lead > CLEAR_LEAD]


async def _least_lead(session: aiohttp.ClientSession, url: str, question: Question) -> float:
    body = {key: value for key, value in question.body.items() if key not in ("stream_options", "store")}
    if "response_format" in body:
        return math.inf
    body |= {"stream": False}
    if question.path == "/v1/completions":
        async with session.post(f"{url}/v1/completions", json=body | {"logprobs": 2}) as answer:
            tokens = (await answer.json())["choices"][0]["logprobs"]["top_logprobs"]
        pairs = [sorted(token.values(), reverse=True) for token in tokens]
    else:
        if "input" in body:  # the Responses API
            body["messages"] = [{"role": "user", "content": body.pop("input")}]
            body["max_tokens"] = body.pop("max_output_tokens")
        body |= {"logprobs": True, "top_logprobs": 2}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            tokens = (await answer.json())["choices"][0]["logprobs"]["content"]
        pairs = [sorted((one["logprob"] for one in token["top_logprobs"]), reverse=True) for token in tokens]
    return min((pair[0] - pair[1] for pair in pairs if len(pair) > 1), default=math.inf)


async def ask(session: aiohttp.ClientSession, url: str, question: Question) -> Any:
    """The answer without what varies; raises when there is none, or only a part of one."""
    async with session.post(url + question.path, json=question.body) as answer:
        if answer.status != 200:
            raise NoAnswer(f"{answer.status} {await answer.text()}")
        if not question.stream:
            return steady(await answer.json())
        lines = (await answer.text()).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    decoded = [json.loads(event) for event in events if event != "[DONE]"]
    if errors := [
        event for event in decoded if event.get("error") or event.get("type") in ("error", "response.failed")
    ]:
        raise NoAnswer(str(errors))
    return [joined([steady(event) for event in decoded]), events.count("[DONE]")]


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: steady(inner) for key, inner in value.items() if key not in _VARIES}
        if "cache_read_input_tokens" in kept:
            kept["input_tokens"] += kept.pop("cache_read_input_tokens")
        return kept
    return [steady(inner) for inner in value] if isinstance(value, list) else value


def joined(events: list[Any]) -> dict[str, Any]:
    """The events by what they add to: where one event ends and the next begins depends on when tokens came.

    Texts at the same place are joined; of other values the last one counts.
    """
    whole: dict[str, Any] = {}
    for event in events:
        choice = (event.get("choices") or [{}])[0].get("index", "")
        for place, value in _leaves(event, f"{event.get('type', '')}{choice}"):
            if place.endswith(("/content", "/text", "/delta", "/delta/text", "/arguments")) and isinstance(value, str):
                whole[place] = whole.get(place, "") + value
            elif not place.endswith(("/sequence_number", "/index")):
                whole[place] = value
    return whole


def difference(got: Any, wanted: Any) -> str:
    """Where two answers differ."""
    here, there = dict(_leaves(got, "")), dict(_leaves(wanted, ""))
    places = [place for place in here.keys() | there.keys() if here.get(place) != there.get(place)]
    return "; ".join(f"{place}: {here.get(place)!r}, undisturbed {there.get(place)!r}" for place in sorted(places))


def _leaves(value: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{place}/{key}")]
    if isinstance(value, list):
        return [leaf for number, inner in enumerate(value) for leaf in _leaves(inner, f"{place}/{number}")]
    return [(place, value)]
