"""The official OpenAI client for Python, one of its first 1.x releases and the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients

HEAD = """
import json, sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="k", max_retries=0)
model = client.models.list().data[0].id
def asked(content): return {"model": model, "messages": [{"role": "user", "content": content}]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
"""


@pytest.fixture(params=["openai-first", "openai"])
def openai(request: pytest.FixtureRequest, tmp_path: Path) -> Installed:
    return Installed(request.param, tmp_path)


def test_a_chat_is_answered_whole_and_streamed(openai: Installed, scripted: str) -> None:
    heard = openai.python(
        HEAD
        + """
whole = client.chat.completions.create(**asked("THINK Hello")).choices[0]
chunks = list(client.chat.completions.create(**asked("Hello"), stream=True, stream_options={"include_usage": True}))
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
print(json.dumps([whole.message.content, whole.finish_reason, text, chunks[-1].usage.completion_tokens > 0]))
""",
        scripted,
    )
    assert heard == ["Hello", "stop", "Hello", True]


def test_a_tool_is_called_and_its_result_read(openai: Installed, scripted: str) -> None:
    heard = openai.python(
        HEAD
        + """
first = asked('CALL weather {"city": "Lyon"}')
message = client.chat.completions.create(**first, tools=TOOLS).choices[0].message
call = message.tool_calls[0]
history = first["messages"] + [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
answer = client.chat.completions.create(model=model, messages=history, tools=TOOLS).choices[0].message.content
print(json.dumps([call.function.name, json.loads(call.function.arguments), answer]))
""",
        scripted,
    )
    assert heard == ["weather", {"city": "Lyon"}, "The tool said: sunny"]


def test_the_bundled_model_is_made_to_call_a_tool_and_to_write_json(openai: Installed, bundled: str) -> None:
    heard = openai.python(
        HEAD
        + """
answer = client.chat.completions.create(**asked("What is the weather in Lyon?"), tools=TOOLS, tool_choice="required")
form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {
    "type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}}}
written = client.chat.completions.create(**asked("Give me a number"), response_format=form).choices[0].message.content
called = answer.choices[0].message.tool_calls[0].function
print(json.dumps([called.name, sorted(json.loads(called.arguments)), json.loads(written)["n"] in (1, 2)]))
""",
        bundled,
    )
    assert heard == ["weather", ["city"], True]


def test_an_unknown_model_and_a_bad_value_raise_the_clients_own_errors(openai: Installed, bundled: str) -> None:
    heard = openai.python(
        HEAD
        + """
import openai
raised = []
for more in ({"model": "nope"}, {"temperature": 9}):
    try:
        client.chat.completions.create(**{**asked("x"), **more})
    except openai.APIStatusError as error:
        raised.append([type(error).__name__, error.code])
print(json.dumps(raised))
""",
        bundled,
    )
    assert heard == [["NotFoundError", "model_not_found"], ["BadRequestError", "invalid_value"]]


def test_responses_remember_the_turn_before(tmp_path: Path, scripted: str) -> None:
    heard = Installed("openai", tmp_path).python(
        HEAD
        + """
first = client.responses.create(model=model, input="Hello")
with client.responses.stream(model=model, input="And you?", previous_response_id=first.id) as stream:
    kinds = {event.type for event in stream}
    second = stream.get_final_response()
print(json.dumps([first.output_text, second.output_text, second.previous_response_id == first.id,
    "response.completed" in kinds, len(client.responses.input_items.list(second.id).data)]))
""",
        scripted,
    )
    assert heard == ["Hello", "And you?", True, True, 3]
