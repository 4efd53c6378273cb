"""LiteLLM, which reaches one server under several providers' names."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "litellm"

KINDS = ("openai", "hosted_vllm", "anthropic", "ollama_chat")
HEAD = """
import json, sys
import litellm
url, *kinds = sys.argv[1:]
def ask(kind, content, **more):
    base = url if kind in ("anthropic", "ollama_chat") else url + "/v1"
    return litellm.completion(model=kind + "/scripted", api_base=base, api_key="k", max_tokens=200,
        messages=[{"role": "user", "content": content}], **more)
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
"""
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def test_a_chat_is_answered_whole_and_streamed(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
def streamed(kind):
    return "".join(chunk.choices[0].delta.content or "" for chunk in ask(kind, "Hello", stream=True))
print(json.dumps([[ask(kind, "Hello").choices[0].message.content, streamed(kind)] for kind in kinds]))
""",
        scripted,
        *KINDS,
        **OFFLINE,
    )
    assert heard == [["Hello", "Hello"]] * len(KINDS)


def test_a_tool_is_called(client: Installed, scripted: str) -> None:
    heard = client.python(
        HEAD
        + """
def called(kind):
    call = ask(kind, 'CALL weather {"city": "Lyon"}', tools=TOOLS).choices[0].message.tool_calls[0].function
    return [call.name, json.loads(call.arguments)]
print(json.dumps([called(kind) for kind in kinds]))
""",
        scripted,
        *KINDS,
        **OFFLINE,
    )
    assert heard == [["weather", {"city": "Lyon"}]] * len(KINDS)
