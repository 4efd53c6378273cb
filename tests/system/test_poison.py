"""Constraints and requests that kill workers: through every API, with real engines and real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from support.deadly_worker import DEADLY_SEED, MODES
from support.stack import Frontend, Stack
from support.waiting import until

DEADLY = str(Path(__file__).parents[1] / "support" / "deadly_worker.py")


def chain(links: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{link}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{link + 1}"}}, "required": ["a"]}
        for link in range(links)
    }
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "required": ["a"],
        "$defs": definitions | {f"d{links}": {"type": "string"}},
    }


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"anyOf": [{"type": "array", "items": schema}]}
    return schema


ITEMS = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}
TREE = {
    "type": "object",
    "properties": {"left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["left"],
}
SCHEMAS = {"238": chain(238), "1200": chain(1200), "items": ITEMS, "nested": nested(60)}
RULES = "start: r0\n" + "".join(f'r{rule}: "a" r{rule + 1}\n' for rule in range(4000)) + 'r4000: "b"\n'
"""No schema and no repetition, so that only a compiler finds out how deep it is."""


async def ask(frontend: Frontend, **fields: Any) -> str:
    answer = await frontend.client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], **({"max_tokens": 40} | fields)
    )
    message = answer.choices[0].message
    return message.content or (message.tool_calls[0].function.arguments if message.tool_calls else "")  # type: ignore[union-attr]


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def tool(schema: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"it": {"$ref": "#/$defs/it"}}, "required": ["it"]}
    parameters |= {"$defs": {**schema.get("$defs", {}), "it": {k: v for k, v in schema.items() if k != "$defs"}}}
    function = {"name": "f", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


def guided_json(schema: Any) -> dict[str, Any]:
    return {"extra_body": {"guided_json": schema}}


@pytest.mark.parametrize("engine", ["mistralrs", "llamacpp"])
async def test_a_real_engine_survives_constraints_that_cannot_be_compiled_and_answers_others(
    engine: str, stack: Stack
) -> None:
    worker = await stack.python("-m", "dynamo.worker", engine, "tiny", "--migration-limit", "5", RAYON_NUM_THREADS="1")
    frontend = await stack.frontend()
    await frontend.until_models("tiny")
    for schema in SCHEMAS.values():
        for carried in (response_format, tool, guided_json):
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(frontend, **carried(schema))
            assert caught.value.param
    for guided in ({"guided_regex": "(a{1000}){100000}"}, {"guided_grammar": 'start: "a"~100000000'}):
        with pytest.raises(openai.BadRequestError, match="repetitions"):
            await ask(frontend, extra_body=guided)
    for _ in range(2):
        with pytest.raises(openai.BadRequestError, match="more stack, memory or time"):
            await ask(frontend, extra_body={"guided_grammar": RULES})
    assert (await ask(frontend, **guided_json(TREE))).startswith('{"left":')
    assert (await ask(frontend, **response_format(chain(20)))).startswith('{"a":')
    assert await ask(frontend)
    assert worker.child.returncode is None


async def lost(stack: Stack, frontend: Frontend, workers: int) -> int:
    """How many of the workers have ended, once the frontend has noticed."""
    ended = [each for each in stack.processes if each.child.returncode is not None]
    await frontend.until_instances(workers - len(ended))
    return len(ended)


@pytest.mark.parametrize("carried", [response_format({"const": "deadly"}), {"max_tokens": 666}])
async def test_a_request_that_kills_workers_kills_two_of_four_however_often_it_is_sent(
    carried: dict[str, Any], stack: Stack
) -> None:
    for _ in range(4):
        await stack.python(DEADLY)
    frontend = await stack.frontend("--migration-limit", "5")
    await frontend.until_models("tiny")
    await frontend.until_instances(4)
    for _ in range(3):
        with pytest.raises(openai.APIStatusError, match="orkers were lost"):
            await ask(frontend, **carried)
    assert await lost(stack, frontend, 4) == 2
    assert await ask(frontend)
    assert await ask(frontend, **response_format({"const": "harmless"}))


KEYS = '[killer]\nkey = "killer"\n[other]\nkey = "other"\n'


def client(frontend: Frontend, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{frontend.url}/v1", api_key=key, max_retries=0)


async def complete(user: openai.AsyncOpenAI, prompt: str, **fields: Any) -> str:
    """The text of one streamed answer."""
    answer = await user.completions.create(model="tiny", prompt=prompt, stream=True, **({"max_tokens": 40} | fields))
    return "".join([chunk.choices[0].text async for chunk in answer if chunk.choices])


async def test_deadly_requests_of_one_key_cost_one_worker_each_and_the_other_key_nothing(
    stack: Stack, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    modes = [MODES.index(mode) for mode in ("abort", "fault", "exit", "late")]
    workers = len(modes) + 3
    for _ in range(workers):
        await stack.python(DEADLY)
    frontend = await stack.frontend("--migration-limit", "5", "--api-keys-file", str(keys))
    killer, other = client(frontend, "killer"), client(frontend, "other")
    prompts = [f"prompt {number} " + "word " * number for number in range(24)]
    async with killer, other:

        async def known() -> bool:
            headers = {"Authorization": "Bearer other"}
            async with aiohttp.ClientSession() as http, http.get(f"{frontend.url}/health", headers=headers) as health:
                found = (await health.json()).get("instances", ())
            return sum(one["endpoint"] == "generate" for one in found) == workers

        await until(known)
        alone = {prompt: await complete(other, prompt) for prompt in prompts}
        stop = asyncio.Event()
        answered: list[tuple[str, str]] = []

        async def keep_asking(at: int) -> None:
            while not stop.is_set():
                prompt = prompts[at % len(prompts)]
                answered.append((prompt, await complete(other, prompt)))
                at += 5

        async with asyncio.TaskGroup() as group:
            for at in range(5):
                group.create_task(keep_asking(at))
            lost = []
            for number, mode in enumerate(modes):
                for _ in range(3):
                    with pytest.raises(openai.APIError, match="lost"):
                        await complete(killer, f"deadly {number}", seed=DEADLY_SEED + mode)
                lost.append(sum(each.child.returncode is not None for each in stack.processes))
            stop.set()
        assert lost[-1] <= len(modes) + 1, "the first costs a second one, which proves whose it was"
        assert all(text == alone[prompt] for prompt, text in answered)
        assert len(answered) > len(modes)
        assert await complete(other, prompts[0]) == alone[prompts[0]]
