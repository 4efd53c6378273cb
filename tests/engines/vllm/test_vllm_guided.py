"""Guided answers of a real vLLM are valid and end, also those of a small model at any temperature."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
import pytest_asyncio

from dynamo.engines.base import Engine
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import vllm_from_spec
from dynamo.model import LocalModel, bundled
from dynamo.pipeline.guidance import guided_calls, guided_decoding
from dynamo.pipeline.parse import CallForm
from dynamo.protocols.chat import ChatRequest
from support.asking import asking, tiny_end, tiny_tokenizer
from support.sinks import Kept

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORD = {"type": "string", "maxLength": 12}
PERSON = {
    "type": "object",
    "properties": {
        "name": WORD,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {"type": "object", "properties": {"city": WORD}, "required": ["city"]},
    },
    "required": ["name", "age", "address"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3}
ENUM = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"enum": [1, 2, None]}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("greet", PERSON), ("paint", ENUM))
]
FORM = CallForm(begin="<tool_call>\n", end="\n</tool_call>", separator="\n")
NAMED = {"type": "function", "function": {"name": "paint"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm() -> AsyncIterator[Engine]:
    spec = EngineSpec(
        model=LocalModel(source="tiny", path=bundled()),
        context_length=2048,
        arguments=["--kv-cache-memory-bytes", "256M"],
    )
    engine = vllm_from_spec(spec)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def hundred_answers(vllm: Engine, guidance: dict[str, Any]) -> list[str]:
    """The answers to a hundred questions at once, half of them greedy."""
    sinks = [Kept() for _ in range(100)]
    for seed, sink in enumerate(sinks):
        options = {"temperature": float(seed % 2), "seed": seed, "max_tokens": 1500, "guided_decoding": guidance}
        vllm.generate(asking(f"Describe person {seed}", **options), sink)
    await asyncio.gather(*(sink.done for sink in sinks))
    assert {sink.last.finish_reason for sink in sinks} == {"stop"}
    return [tiny_tokenizer().decode([id for id in sink.ids if id != tiny_end()]) for sink in sinks]


@pytest.mark.parametrize("schema", [PERSON, LIST, ENUM], ids=["object", "list", "enum"])
async def test_100_of_100_answers_fit_their_schema_without_whitespace(vllm: Engine, schema: dict[str, Any]) -> None:
    for said in await hundred_answers(vllm, {"json": schema}):
        value = json.loads(said)
        jsonschema.validate(value, schema)
        assert "\n" not in said


@pytest.mark.parametrize(
    ("fields", "names", "most"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": False}, ["greet", "paint"], 1),
        ({"tool_choice": "required", "parallel_tool_calls": True, "tools": TOOLS[1:]}, ["paint"], 32),
        ({"tool_choice": NAMED}, ["paint"], 1),
    ],
    ids=["required", "several", "named"],
)
async def test_100_of_100_forced_calls_fit_their_tool(
    vllm: Engine, fields: dict[str, Any], names: list[str], most: int
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": TOOLS, **fields}
    request = msgspec.convert(body, ChatRequest)
    guidance = {**(guided_decoding(request) or {}), "tool_calls": guided_calls(request, FORM)}
    for said in await hundred_answers(vllm, guidance):
        calls = said.removeprefix(FORM.begin).removesuffix(FORM.end).split(FORM.end + FORM.separator + FORM.begin)
        assert 1 <= len(calls) <= most
        for call in map(json.loads, calls):
            assert call["name"] in names
            jsonschema.validate(call["arguments"], {"greet": PERSON, "paint": ENUM}[call["name"]])
