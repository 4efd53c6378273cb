"""Answers as a JSON object with the keys that were asked for."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from .numbers import SUM, sum_of
from .question import Forms, Question, split
from .science import ELEMENTS, NUMBER, SYMBOL
from .world import CAPITAL, CONTINENT, COUNTRIES, COUNTRY

INSTRUCTIONS = split(
    "Answer in JSON with keys {k}.",
    "Answer in JSON with the keys {k}.",
    "Reply in JSON with keys {k}.",
    "Respond in JSON with the keys {k}.",
    "Answer with a JSON object with keys {k}.",
    "Use JSON with the keys {k}.",
    "Give the answer as JSON with the keys {k}.",
    "Reply only with JSON, keys {k}.",
    "Output JSON with the fields {k}.",
    "Return a JSON object with {k}.",
    "Answer as JSON: {k}.",
    "You answer in JSON with keys {k}.",
    "Always answer in JSON with the keys {k}.",
    "~Please answer in JSON with keys {k}.",
    "~Respond with a JSON object with the keys {k}.",
    "~Give me JSON with the keys {k}.",
)


@dataclass(frozen=True, slots=True)
class Structured:
    instruction: str
    question: Question
    answer: str


def _names(rng: Random, keys: list[str]) -> str:
    if rng.random() < 0.2:
        keys = [f'"{key}"' for key in keys]
    if len(keys) == 1:
        return keys[0]
    joint = rng.choice([" and ", ", "])
    return ", ".join(keys[:-1]) + joint + keys[-1]


def _schema(keys: list[str], values: dict[str, Any]) -> str:
    properties = {key: {"type": "integer" if isinstance(values[key], int) else "string"} for key in keys}
    return json.dumps({"type": "object", "properties": properties, "required": keys})


def _question(forms: Forms, slots: dict[str, str]) -> Question:
    return Question("JSON", forms, (), slots)


def structured(rng: Random, held: bool = False) -> Structured:
    kind = rng.random()
    values: dict[str, Any]
    if kind < 0.42:
        country = rng.choice(COUNTRIES)
        name = country.name.removeprefix("the ")
        values = {"country": name, "capital": country.capital, "continent": country.continent}
        keys = rng.choice(
            [["country", "capital"]] * 3
            + [["capital", "country"], ["country", "capital", "continent"], ["country", "continent"], ["capital"]]
        )
        if keys == ["country", "continent"]:
            question = _question(CONTINENT, {"c": country.name})
        elif rng.random() < 0.25:
            question = _question(COUNTRY, {"k": country.capital})
        else:
            question = _question(CAPITAL, {"c": country.name})
    elif kind < 0.67:
        number, symbol, element = rng.choice(ELEMENTS)
        label = rng.choice(["name", "element"])
        values = {label: element.lower(), "symbol": symbol, "number": number}
        keys = rng.choice([[label, "symbol"], [label, "symbol", "number"], [label, "number"], ["symbol"], ["number"]])
        forms = NUMBER if "symbol" not in keys else SYMBOL
        question = _question(forms, {"e": element.lower()})
    else:
        a, b = rng.randint(0, 50), rng.randint(0, 50)
        label = rng.choice(["sum", "result", "answer"])
        values = {"a": a, "b": b, label: a + b}
        keys = rng.choice([["a", "b", label], [label]])
        question = _question(SUM, sum_of(a, b).slots)
    if not held and rng.random() < 0.15:
        instruction = rng.choice(["Answer with JSON for this schema: ", "JSON schema: ", "Use this JSON schema: "])
        instruction += _schema(keys, values)
    else:
        form = rng.choice(INSTRUCTIONS.held if held else INSTRUCTIONS.known)
        instruction = form.format(k=_names(rng, keys))
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    return Structured(instruction, question, answer)
