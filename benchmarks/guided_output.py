"""Guided output of the bundled model: how many answers are valid, and no longer than their schema needs.

An answer counts if it is what was asked for (tool calls of offered tools, or JSON that satisfies the schema), is
written on one line, has no property that the schema does not list, no text beside a call, and was not cut by the limit.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
from msgspec import Struct

from figures import table
from processes import Stack, free_port

RUN = "from dynamo.cli.main import main; main()"
LIMIT = 500
PLACES = ("Paris", "Rome", "Madrid", "Berlin", "Vienna", "Oslo", "Lisbon", "Athens", "Warsaw", "Dublin")
COUNTRIES = ("France", "Italy", "Spain", "Germany", "Austria", "Norway", "Portugal", "Greece", "Poland", "Ireland")


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
WEATHER = closed(city=TEXT)
ADD = closed(a={"type": "number"}, b={"type": "number"})
TOOLS = {"get_weather": WEATHER, "add": ADD}


class Case(Struct):
    """`fields` are added to the request; `schema` is that of the content, None if calls are expected."""

    name: str
    ask: Callable[[int], str]
    fields: dict[str, Any]
    schema: dict[str, Any] | None = None
    may_answer: bool = False
    calls: int = 1


def tool_question(sample: int) -> str:
    if sample % 2:
        return f"What is the weather in {PLACES[sample // 2 % 10]}?"
    return f"What is {sample} + {sample // 3}?"


def any_question(sample: int) -> str:
    return ("Hello", "Who are you?", f"What is the capital of {COUNTRIES[sample % 10]}?", tool_question(sample))[
        sample % 4
    ]


def json_question(sample: int) -> str:
    return f"What is the capital of {COUNTRIES[sample % 10]}? Answer in JSON with the keys country and capital."


def tools(choice: Any, **more: Any) -> dict[str, Any]:
    offered = [{"type": "function", "function": {"name": name, "parameters": TOOLS[name]}} for name in TOOLS]
    return {"tools": offered, "tool_choice": choice, **more}


def answer_in(name: str, schema: dict[str, Any], ask: Callable[[int], str] = json_question) -> Case:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return Case(name, ask, {"response_format": form}, schema)


NAMED = {"type": "function", "function": {"name": "get_weather"}}
WORD = {"type": "string", "maxLength": 40}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
CAPITAL = closed(country=WORD, capital=WORD)
CASES = [
    Case("tools, required", tool_question, tools("required")),
    Case("tools, required, any question", any_question, tools("required")),
    Case("tools, required, parallel", tool_question, tools("required", parallel_tool_calls=True), calls=32),
    Case("tools, named", any_question, tools(NAMED)),
    Case("tools, auto", tool_question, tools("auto"), may_answer=True),
    Case("tools, auto, any question", any_question, tools("auto"), may_answer=True),
    answer_in("object", CAPITAL),
    answer_in("object, any question", CAPITAL, any_question),
    answer_in("list of strings", {"type": "array", "items": WORD, "maxItems": 3}),
    answer_in("list of numbers", {"type": "array", "items": DIGIT, "maxItems": 8}),
    answer_in("list of objects", {"type": "array", "items": CAPITAL, "minItems": 1, "maxItems": 4}),
    answer_in("list in an object", closed(capitals={"type": "array", "items": WORD, "maxItems": 3})),
    answer_in("nested objects", closed(place=closed(country=WORD, seat=CAPITAL), sum=closed(a=DIGIT, b=DIGIT))),
    answer_in("enums", closed(continent={"enum": ["Europe", "Asia", "Africa"]}, size={"enum": [1, 2, 3, None]})),
    answer_in("without bounds: list of objects", {"type": "array", "items": closed(country=TEXT, capital=TEXT)}),
    answer_in("without bounds: list of strings", {"type": "array", "items": TEXT}),
]


def fault(case: Case, answer: dict[str, Any]) -> str | None:
    """Why this answer does not count, or None."""
    choice = answer["choices"][0]
    message = choice["message"]
    content, calls = message.get("content"), message.get("tool_calls") or []
    if choice["finish_reason"] == "length":
        return "cut by the limit"
    if case.schema is not None:
        return _json_fault(content, case.schema)
    if not calls:
        return None if case.may_answer and content and "<tool_call>" not in content else "no call"
    if content:
        return "text beside a call"
    if len(calls) > case.calls:
        return f"{len(calls)} calls"
    named = [call["function"] for call in calls]
    return next((why for each in named if (why := _json_fault(each["arguments"], TOOLS[each["name"]]))), None)


def _json_fault(text: str, schema: dict[str, Any]) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return "not JSON"
    if not jsonschema_rs.is_valid(_strict(schema), value):
        return "not as the schema says"
    return "longer than needed" if len(text) > len(json.dumps(value, ensure_ascii=False)) else None


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    strict = {key: _strict(child) if isinstance(child, dict) else child for key, child in schema.items()}
    return strict | {"additionalProperties": False} if schema.get("type") == "object" else strict


def ask(url: str, case: Case, sample: int, temperature: float) -> dict[str, Any]:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=120)
    messages = [{"role": "user", "content": case.ask(sample)}]
    body = {"model": "tiny", "messages": messages, "temperature": temperature, "max_tokens": LIMIT, **case.fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if "choices" not in answer:
        raise SystemExit(f"{case.name}: {answer}")
    return dict(answer)


def measure(url: str, case: Case, temperature: float, samples: int) -> list[str]:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda sample: ask(url, case, sample, temperature), range(samples)))
    faults: dict[str, int] = {}
    for answer in answers:
        if why := fault(case, answer):
            faults[why] = faults.get(why, 0) + 1
    lengths = [answer["usage"]["completion_tokens"] for answer in answers]
    listed = ", ".join(f"{count} {why}" for why, count in faults.items())
    valid = f"{samples - sum(faults.values())} of {samples}"
    return [case.name, f"{temperature:g}", valid, f"{sum(lengths) / samples:.0f}", str(max(lengths)), listed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100, help="answers for each case and temperature")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder)) as stack:
        port = free_port()
        stack.url = f"http://127.0.0.1:{port}"
        stack.start("run", "-c", RUN, "in=http", "tiny", "--http-port", str(port))
        stack.until("/v1/models", b'"tiny"')
        rows = [
            measure(stack.url, case, temperature, asked.samples)
            for case in CASES
            if asked.only in case.name
            for temperature in (0, 1)
        ]
    print(table(["case", "temperature", "valid", "tokens, mean", "most", "faults"], rows))


if __name__ == "__main__":
    main()
