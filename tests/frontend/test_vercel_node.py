"""The Vercel AI SDK with its defaults: its second turn names the items of the first by reference."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from frontend.test_openai_node import run
from support.toys import Live, Scripted

pytestmark = pytest.mark.node

PACKAGES = ("ai@6", "@ai-sdk/openai@3", "zod@4")
SCRIPT = """
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText, stepCountIs, tool } from "ai";
import { z } from "zod";
const sent = [];
const openai = createOpenAI({baseURL: process.argv[2] + "/v1", apiKey: "k", fetch: (url, options) => {
  sent.push(JSON.parse(options.body));
  return fetch(url, options);
}});
const model = openai("org/toy");
const messages = [{role: "user", content: "THINK"}];
const first = await generateText({model, messages});
const second = await generateText({model, messages: [
  ...messages, ...first.response.messages, {role: "user", content: "STOPS"}]});
const weather = tool({inputSchema: z.object({city: z.string()}), execute: async () => "sunny"});
const stream = streamText({model, prompt: "WEATHER", tools: {weather}, stopWhen: stepCountIs(3)});
let streamed = "";
for await (const text of stream.textStream) streamed += text;
const third = await generateText({model, prompt: "EMOJI", providerOptions: {
  openai: {previousResponseId: second.providerMetadata.openai.responseId}}});
const references = sent.map(body => body.input.filter(item => item.type === "item_reference").length);
console.log(JSON.stringify({first: first.text, second: second.text, streamed, third: third.text, references}));
"""


@pytest.fixture
async def project() -> Path:
    """A folder with the SDK in it, kept between runs; npm fetches it the first time."""
    assert shutil.which("npm"), "this test needs node and npm on the PATH"
    folder = Path(tempfile.gettempdir()) / "dynamo-vercel-ai-6"
    folder.mkdir(exist_ok=True)
    if not (folder / "node_modules" / "ai" / "package.json").exists():
        (folder / "package.json").write_text('{"type": "module", "private": true}')
        await run("npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES, cwd=folder)
    return folder


async def test_the_second_turn_finds_the_items_of_the_first(
    live: Live, toy: Scripted, project: Path, tmp_path: Path
) -> None:
    script = project / f"{tmp_path.name}.mjs"
    script.write_text(SCRIPT)
    # What was said in earlier turns is in the prompt too: the latest comes first.
    toy.answers = {key: toy.answers[key] for key in ("EMOJI", "sunny", "STOPS", "WEATHER", "THINK")}
    try:
        heard = json.loads(await run("node", str(script), live.url, cwd=project))
    finally:
        script.unlink()
    assert heard["first"] == "The answer."
    assert heard["second"] == "one two three four"
    assert heard["streamed"] == "It is sunny."
    assert heard["third"] == "🎉 Grüße, 你好!"
    assert heard["references"][:2] == [0, 2]
    prompt = toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    assert "The answer." in prompt
    assert "one two three four" in prompt
