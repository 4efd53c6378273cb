"""Tools that the client runs and that are no functions for it: custom tools, shells and patches."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from dynamo.api.responses.calls import patch_operation, shell_commands
from support.named_events import named_events
from support.toys import Live, Scripted, toy_card

MODEL = "org/toy"
PATCH = '*** Begin Patch\n+"é" \\ 😀\n*** End Patch'
SHELL_ARGUMENTS = {"command": ["ls", "-l"], "working_directory": "/tmp"}


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


ANSWERS = {
    "PATCH": called("apply_patch", {"input": PATCH}),
    "SHELL": called("local_shell", SHELL_ARGUMENTS),
    "LINES": called("shell", {"commands": ["ls -l", "pwd"], "timeout_ms": 5}),
    "DIFF": called("apply_patch", {"type": "update_file", "path": "a.py", "diff": "@@\n-é\n+😀"}),
    "BOTH": called("weather", {"city": "Lyon"}) + called("apply_patch", {"input": PATCH}),
    "guided": json.dumps({"input": PATCH}),
}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
CUSTOM: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CHAT_CUSTOM: Any = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edit files."}}
LOCAL_SHELL: Any = {"type": "local_shell"}
official = TypeAdapter[Any](ResponseStreamEvent)


@pytest.fixture
async def engine(live: Live, folder: Path) -> Scripted:
    scripted = Scripted(ANSWERS)
    await live.serve(scripted.generate, toy_card(folder, MODEL, tool_call_parser="hermes", guided_decoding=True))
    return scripted


@pytest.fixture
async def client(live: Live) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as made:
        yield made


def last_prompt(engine: Scripted) -> str:
    return engine.tokenizer.decode(engine.requests[-1]["token_ids"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_is_called_with_text(
    engine: Scripted, client: AsyncOpenAI, live: Live, stream: bool
) -> None:
    body = {"model": MODEL, "input": "BOTH", "tools": [CUSTOM, WEATHER]}
    if stream:
        events = named_events((await live.events("/v1/responses", {**body, "stream": True})).encode(), official)
        pieces = [each for each in events if each["type"] == "response.custom_tool_call_input.delta"]
        done = next(each for each in events if each["type"] == "response.custom_tool_call_input.done")
        assert len(pieces) > 2
        assert "".join(each["delta"] for each in pieces) == done["input"] == PATCH
        output = events[-1]["response"]["output"]
    else:
        response = await client.responses.create(**body)  # type: ignore[call-overload]
        output = [item.to_dict() for item in response.output]
    function, custom = output
    assert (function["type"], json.loads(function["arguments"])) == ("function_call", {"city": "Lyon"})
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    assert "start: /.+/" in last_prompt(engine)


async def test_a_grammar_that_is_only_described_is_named_in_a_header(engine: Scripted, live: Live) -> None:
    body = {"model": MODEL, "input": "hi", "tools": [CUSTOM]}
    async with live.http.post("/v1/responses", json=body) as answer:
        warning = "ignored grammars that only the model's prompt mentions: apply_patch"
        assert answer.headers["x-dynamo-warning"] == warning


@pytest.mark.parametrize("stored", [False, True])
async def test_the_output_of_a_custom_tool_is_read(engine: Scripted, client: AsyncOpenAI, stored: bool) -> None:
    first = await client.responses.create(model=MODEL, input="PATCH", tools=[CUSTOM])
    (call,) = first.output
    assert call.type == "custom_tool_call"
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Patched it."}
    engine.answers = {}
    if stored:
        await client.responses.create(model=MODEL, input=[result], previous_response_id=first.id, tools=[CUSTOM])
        items = await client.responses.input_items.list(first.id)
        assert [item.type for item in items.data] == ["message"]
    else:
        past: Any = [{"role": "user", "content": "PATCH"}, call.to_dict(), result]
        await client.responses.create(model=MODEL, input=past, tools=[CUSTOM])
    prompt = last_prompt(engine)
    assert "Patched it." in prompt
    assert '"name": "apply_patch"' in prompt
    assert "*** Begin Patch" in prompt


async def test_a_named_custom_tool_is_forced(engine: Scripted, client: AsyncOpenAI) -> None:
    regex: Any = {**CUSTOM, "format": {"type": "grammar", "syntax": "regex", "definition": ".+"}}
    choice: Any = {"type": "custom", "name": "apply_patch"}
    response = await client.responses.create(model=MODEL, input="guided", tools=[regex], tool_choice=choice)
    assert [item.input for item in response.output if item.type == "custom_tool_call"] == [PATCH]
    schema = engine.requests[-1]["sampling_options"]["guided_decoding"]["json"]
    assert schema["properties"]["input"] == {"type": "string", "pattern": "^(?:.+)$"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_local_shell_is_called_and_its_output_read(
    engine: Scripted, client: AsyncOpenAI, live: Live, stream: bool
) -> None:
    body = {"model": MODEL, "input": "SHELL", "tools": [LOCAL_SHELL]}
    if stream:
        events = named_events((await live.events("/v1/responses", {**body, "stream": True})).encode(), official)
        (call,) = events[-1]["response"]["output"]
    else:
        call = (await client.responses.create(**body)).output[0].to_dict()  # type: ignore[call-overload]
    assert call["type"] == "local_shell_call"
    action = call["action"]
    assert (action["type"], action["command"], action["working_directory"]) == ("exec", ["ls", "-l"], "/tmp")
    engine.answers = {}
    result: Any = {"type": "local_shell_call_output", "id": call["call_id"], "output": "total 0"}
    await client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "SHELL"}, call, result], tools=[LOCAL_SHELL]
    )
    assert "total 0" in last_prompt(engine)
    assert '"working_directory": "/tmp"' in last_prompt(engine)


OUTCOMES = [
    {"stdout": "total 0", "stderr": "no such file", "outcome": {"type": "exit", "exit_code": 2}},
    {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool", "word", "field", "asked", "result", "read"),
    [
        (
            "shell",
            "LINES",
            "action",
            {"commands": ["ls -l", "pwd"], "timeout_ms": 5},
            {"output": OUTCOMES},
            "total 0\nno such file\n(exit code 2)\n(timed out)",
        ),
        (
            "apply_patch",
            "DIFF",
            "operation",
            {"type": "update_file", "path": "a.py", "diff": "@@\n-é\n+😀"},
            {"status": "failed", "output": "no such line"},
            "failed: no such line",
        ),
        ("apply_patch", "DIFF", "operation", {"path": "a.py"}, {"status": "completed"}, "completed"),
    ],
)
async def test_shells_and_patches_are_called_and_their_output_is_read(
    engine: Scripted,
    client: AsyncOpenAI,
    live: Live,
    stream: bool,
    tool: str,
    word: str,
    field: str,
    asked: dict[str, Any],
    result: dict[str, Any],
    read: str,
) -> None:
    tools: Any = [{"type": tool}]
    body: Any = {"model": MODEL, "input": word, "tools": tools}
    if stream:
        events = named_events((await live.events("/v1/responses", {**body, "stream": True})).encode(), official)
        response = events[-1]["response"]
    else:
        response = (await client.responses.create(**body)).to_dict()
    (call,) = response["output"]
    assert (call["type"], call["status"]) == (f"{tool}_call", "completed")
    assert asked.items() <= call[field].items()
    engine.answers = {}
    output: Any = {"type": f"{tool}_call_output", "call_id": call["call_id"], **result}
    await client.responses.create(model=MODEL, input=[output], tools=tools, previous_response_id=response["id"])
    assert read in last_prompt(engine)
    assert json.dumps(asked, ensure_ascii=False)[1:-1] in last_prompt(engine)


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        ('{"commands": ["a b", "c"]}', ["a b", "c"]),
        ('{"command": ["ls", "a b"]}', ["ls 'a b'"]),
        ('{"command": "ls"}', ["ls"]),
        ("ls -l", ["ls -l"]),
        ("", []),
    ],
)
def test_commands_are_read_however_a_model_writes_them(arguments: str, commands: list[str]) -> None:
    assert shell_commands(arguments).commands == commands


def test_a_patch_that_cannot_be_read_is_one_of_no_file() -> None:
    operation = patch_operation("*** Begin Patch")
    assert (operation.type, operation.path, operation.diff) == ("update_file", "", "*** Begin Patch")


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"type": "shell_call", "call_id": "c", "action": {"command": "x"}}, "input[0].action"),
        ({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "x", "path": ""}}, "input[0].operation"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"stdout": "x"}]}, "input[0].output[0].type"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "x"}, "input[0].input"),
        ({"type": "custom_tool_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "local_shell_call", "call_id": "c", "action": {"type": "search"}}, "input[0].action"),
    ],
)
async def test_incomplete_items_are_refused_by_their_field(engine: Scripted, live: Live, item: Any, why: str) -> None:
    status, answer = await live.post("/v1/responses", {"model": MODEL, "input": [item]})
    assert (status, answer["error"]["param"]) == (400, why)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions_call_custom_tools(engine: Scripted, client: AsyncOpenAI, stream: bool) -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "PATCH"}], "tools": [CHAT_CUSTOM]}
    if stream:
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
        deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks]
        calls: Any = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        assert (calls[0]["type"], calls[0]["custom"]["name"]) == ("custom", "apply_patch")
        assert "".join(call["custom"]["input"] for call in calls) == PATCH
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        return
    message = (await client.chat.completions.create(**asked)).choices[0].message
    assert message.tool_calls
    (call,) = message.tool_calls
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("apply_patch", PATCH)
    engine.answers = {}
    result = {"role": "tool", "tool_call_id": call.id, "content": "Patched it."}
    asked["messages"] += [message.to_dict(), result]
    await client.chat.completions.create(**asked)
    assert '"name": "apply_patch"' in last_prompt(engine)
    assert "Patched it." in last_prompt(engine)


async def test_chat_completions_force_a_named_custom_tool(engine: Scripted, live: Live) -> None:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "guided"}],
        "tools": [CHAT_CUSTOM, {"type": "function", "function": {"name": "other"}}],
    }
    named = {"type": "custom", "custom": {"name": "apply_patch"}}
    tools = [named]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    status, answer = await live.post("/v1/chat/completions", {**asked, "tool_choice": named})
    assert status == 200, answer
    assert answer["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == PATCH
    status, answer = await live.post("/v1/chat/completions", {**asked, "tool_choice": allowed})
    assert status == 200, answer
    assert '"name": "other"' not in last_prompt(engine)
    missing = {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}
    status, answer = await live.post("/v1/chat/completions", {**asked, "messages": [missing]})
    assert (status, answer["error"]["param"]) == (400, "messages[0].tool_calls[0].function")
