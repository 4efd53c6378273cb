"""The official OpenAI client for JavaScript."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "openai-node"

SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({baseURL: process.argv[2] + "/v1", apiKey: "k", maxRetries: 0});
const ask = (content, more = {}) => client.chat.completions.create(
  {model: "scripted", messages: [{role: "user", content}], stream: true, ...more});
const heard = {text: "", finish: null, usage: null, error: null, call: null};
for await (const chunk of await ask("🎉 Grüße, 你好!", {stream_options: {include_usage: true}})) {
  heard.text += chunk.choices[0]?.delta?.content ?? "";
  heard.finish = chunk.choices[0]?.finish_reason ?? heard.finish;
  heard.usage = chunk.usage ?? heard.usage;
}
const tools = [{type: "function", function: {name: "weather", parameters: {type: "object", properties: {}}}}];
const runner = client.chat.completions.stream(
  {model: "scripted", messages: [{role: "user", content: 'CALL weather {"city": "Köln"}'}], tools});
const final = await runner.finalChatCompletion();
heard.call = JSON.parse(final.choices[0].message.tool_calls[0].function.arguments).city;
try { await ask("x", {temperature: 9}); } catch (error) { heard.error = [error.constructor.name, error.param]; }
console.log(JSON.stringify(heard));
"""


def test_it_streams_chats_calls_tools_and_raises(client: Installed, scripted: str) -> None:
    heard = client.node(SCRIPT, scripted)
    assert heard["text"] == "🎉 Grüße, 你好!"
    assert heard["finish"] == "stop"
    assert heard["usage"]["total_tokens"] == heard["usage"]["prompt_tokens"] + heard["usage"]["completion_tokens"]
    assert heard["call"] == "Köln"
    assert heard["error"] == ["BadRequestError", "temperature"]
