"""The Vercel AI SDK with its defaults: a second turn to OpenAI names the items of the first by reference."""

from __future__ import annotations

import pytest

from clients.conftest import Installed

pytestmark = pytest.mark.clients
CLIENT = "vercel-ai"

HEAD = """
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, streamText, stepCountIs, tool } from "ai";
import { z } from "zod";
const [url, kind] = process.argv.slice(2);
const sent = [];
const options = {apiKey: "k", baseURL: url + "/v1", name: "dynamo", fetch: (url, options) => {
  sent.push(JSON.parse(options.body));
  return fetch(url, options);
}};
const made = {"openai": createOpenAI, "openai-compatible": createOpenAICompatible, "anthropic": createAnthropic};
const model = made[kind](options)("scripted");
"""


@pytest.mark.parametrize("kind", ["openai", "openai-compatible", "anthropic"])
def test_a_tool_is_called_in_a_stream_and_its_result_read(client: Installed, scripted: str, kind: str) -> None:
    heard = client.node(
        HEAD
        + """
const weather = tool({inputSchema: z.object({city: z.string()}), execute: async ({city}) => "sunny in " + city});
const stream = streamText({model, prompt: 'CALL weather {"city": "Lyon"}', tools: {weather}, stopWhen: stepCountIs(3)});
let text = "";
for await (const piece of stream.textStream) text += piece;
console.log(JSON.stringify(text));
""",
        scripted,
        kind,
    )
    assert heard == "The tool said: sunny in Lyon"


def test_the_second_turn_finds_the_items_of_the_first(client: Installed, scripted: str) -> None:
    heard = client.node(
        HEAD
        + """
const messages = [{role: "user", content: "THINK one"}];
const first = await generateText({model, messages});
const second = await generateText({model, messages: [
  ...messages, ...first.response.messages, {role: "user", content: "two"}]});
const third = await generateText({model, prompt: "three", providerOptions: {
  openai: {previousResponseId: second.providerMetadata.openai.responseId}}});
const references = sent.map(body => body.input.filter(item => item.type === "item_reference").length);
console.log(JSON.stringify({texts: [first.text, second.text, third.text], references,
  grew: third.usage.inputTokens > second.usage.inputTokens}));
""",
        scripted,
        "openai",
    )
    assert heard == {"texts": ["one", "two", "three"], "references": [0, 2, 0], "grew": True}
