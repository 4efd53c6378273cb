"""LangChain's chat models: OpenAI's chat and Responses, and Anthropic's Messages."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "langchain"

HEAD = """
import json, sys
from langchain_openai import ChatOpenAI
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
url = sys.argv[1]
openai = {"base_url": url + "/v1", "api_key": "k", "stream_usage": True}
models = [ChatOpenAI(model="scripted", **openai), ChatOpenAI(model="scripted", use_responses_api=True, **openai),
    ChatAnthropic(model="scripted", base_url=url, api_key="k")]
"""


def test_a_chat_is_answered_whole_and_streamed(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
def streamed(model):
    chunks = list(model.stream("Hello"))
    return ["".join(chunk.text for chunk in chunks), any(chunk.usage_metadata for chunk in chunks)]
print(json.dumps([[model.invoke("Hello").text, *streamed(model)] for model in models]))
""",
        scripted,
    )
    assert heard == [["Hello", "Hello", True]] * 3


def test_a_bound_tool_is_called_and_its_result_read(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
@tool
def weather(city: str) -> str:
    "The weather in a city."
    return "sunny in " + city
def called(model):
    bound = model.bind_tools([weather])
    messages = [HumanMessage('CALL weather {"city": "Lyon"}')]
    messages.append(bound.invoke(messages))
    call = messages[-1].tool_calls[0]
    messages.append(weather.invoke(call))
    return [call["name"], call["args"], bound.invoke(messages).text]
print(json.dumps([called(model) for model in models]))
""",
        scripted,
    )
    assert heard == [["weather", {"city": "Lyon"}, "The tool said: sunny in Lyon"]] * 3


def test_the_bundled_model_writes_structured_output(client: Installed, bundled: str) -> None:
    heard = client.python(
        HEAD
        + """
from typing import Literal
from pydantic import BaseModel
class Answer(BaseModel):
    size: Literal["small", "large"]
model = ChatOpenAI(model="tiny", **openai)
print(json.dumps(model.with_structured_output(Answer).invoke("How large is a whale?").size in ("small", "large")))
""",
        bundled,
    )
    assert heard is True
