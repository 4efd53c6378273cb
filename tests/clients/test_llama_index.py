"""LlamaIndex with its `OpenAILike`."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "llama-index"

HEAD = """
import json, sys
from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.openai_like import OpenAILike
def model(**more):
    return OpenAILike(model="scripted", api_base=sys.argv[1] + "/v1", api_key="k", is_chat_model=True, **more)
"""


def test_a_chat_is_answered_whole_and_streamed(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
hello = [ChatMessage(role="user", content="Hello")]
print(json.dumps([model().chat(hello).message.content, [*model().stream_chat(hello)][-1].message.content,
    model().complete("Hello").text]))
""",
        scripted,
    )
    assert heard == ["Hello", "Hello", "Hello"]


def test_a_completion_is_answered(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD.replace("is_chat_model=True", "is_chat_model=False") + 'print(json.dumps(model().complete("Once").text))',
        scripted,
    )
    assert heard == "Once"


def test_a_tool_is_called(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
from llama_index.core.tools import FunctionTool
def weather(city: str) -> str:
    "The weather in a city."
    return "sunny in " + city
answer = model(is_function_calling_model=True).predict_and_call(
    [FunctionTool.from_defaults(weather)], 'CALL weather {"city": "Lyon"}')
print(json.dumps(answer.response))
""",
        scripted,
    )
    assert heard == "sunny in Lyon"
