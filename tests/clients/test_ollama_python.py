"""Ollama's own client for Python."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "ollama"

HEAD = """
import json, sys
import ollama
client = ollama.Client(host=sys.argv[1])
def asked(content): return {"model": "scripted", "messages": [{"role": "user", "content": content}]}
"""


def test_it_lists_the_models_and_shows_one(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
print(json.dumps([client.list().models[0].model, client.ps().models[0].model, client.show("scripted").capabilities]))
""",
        scripted,
    )
    assert heard == ["scripted", "scripted", ["completion", "tools", "thinking"]]


def test_a_chat_and_a_prompt_are_answered_whole_and_streamed(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
streamed = "".join(part.message.content for part in client.chat(**asked("Hello"), stream=True))
print(json.dumps([client.chat(**asked("Hello")).message.content, streamed,
    client.generate("scripted", "Hello").response,
    "".join(part.response for part in client.generate("scripted", "Hello", stream=True)),
    client.chat(**asked("THINK Hello"), think=True).message.thinking]))
""",
        scripted,
    )
    assert heard == ["Hello", "Hello", "Hello", "Hello", "Let me see."]


def test_a_function_is_called_and_its_result_read(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
def weather(city: str) -> str:
    '''The weather in a city.

    Args:
        city: its name
    '''
    return "sunny in " + city
first = asked('CALL weather {"city": "Lyon"}')
message = client.chat(**first, tools=[weather]).message
call = message.tool_calls[0].function
result = {"role": "tool", "tool_name": call.name, "content": weather(**call.arguments)}
print(json.dumps(client.chat("scripted", first["messages"] + [message, result], tools=[weather]).message.content))
""",
        scripted,
    )
    assert heard == "The tool said: sunny in Lyon"


def test_an_unknown_model_raises_the_clients_own_error(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
try:
    client.generate("nope", "Hello")
except ollama.ResponseError as error:
    print(json.dumps([error.status_code, "nope" in error.error]))
""",
        scripted,
    )
    assert heard == [404, True]


def test_texts_are_embedded(client: Installed, embedding: str) -> None:
    heard = client.python(
        HEAD
        + """
answer = client.embed("embedding", ["one", "one two three"])
print(json.dumps([[len(vector) for vector in answer.embeddings], answer.prompt_eval_count,
    list(client.embeddings("embedding", "one").embedding), client.show("embedding").capabilities]))
""",
        embedding,
    )
    sizes, tokens, vector, capabilities = heard
    assert sizes == [2, 2]
    assert tokens > vector[0] > 0
    assert vector[1] == 1
    assert capabilities == ["embedding"]
