"""The official Anthropic client for Python, and its tool runner."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "anthropic"

HEAD = """
import json, sys
from anthropic import Anthropic, beta_tool
client = Anthropic(base_url=sys.argv[1], api_key="k", max_retries=0)
def asked(content): return {"model": "scripted", "max_tokens": 200, "messages": [{"role": "user", "content": content}]}
"""


def test_a_message_is_answered_whole_and_streamed(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
whole = client.messages.create(**asked("Hello"))
with client.messages.stream(**asked("THINK Grüße")) as stream:
    text = "".join(stream.text_stream)
    kinds = [block.type for block in stream.get_final_message().content]
print(json.dumps([whole.content[0].text, whole.stop_reason, text, kinds,
    client.messages.count_tokens(model="scripted", messages=asked("Hello")["messages"]).input_tokens
    == whole.usage.input_tokens]))
""",
        scripted,
    )
    assert heard == ["Hello", "end_turn", "Grüße", ["thinking", "text"], True]


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_calls_a_function_until_the_model_has_answered(
    client: Installed, scripted: str, stream: bool
) -> None:
    heard = client.python(
        HEAD
        + """
@beta_tool
def weather(city: str) -> str:
    "The weather in a city."
    return "sunny in " + city
more = {"stream": True} if sys.argv[2] == "True" else {}
runner = client.beta.messages.tool_runner(tools=[weather], **asked('CALL weather {"city": "Lyon"}'), **more)
print(json.dumps(runner.until_done().content[0].text))
""",
        scripted,
        str(stream),
    )
    assert heard == "The tool said: sunny in Lyon"
