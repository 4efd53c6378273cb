"""The official OpenAI client for JavaScript against a live server, streaming."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from support.toys import Live, Scripted

pytestmark = pytest.mark.node

VERSION = "6"
SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({baseURL: process.argv[2] + "/v1", apiKey: "k", maxRetries: 0});
const ask = (content, more = {}) => client.chat.completions.create(
  {model: "org/toy", messages: [{role: "user", content}], stream: true, ...more});
const heard = {text: "", finish: null, usage: null, error: null, calls: []};
for await (const chunk of await ask("EMOJI", {stream_options: {include_usage: true}})) {
  heard.text += chunk.choices[0]?.delta?.content ?? "";
  heard.finish = chunk.choices[0]?.finish_reason ?? heard.finish;
  heard.usage = chunk.usage ?? heard.usage;
}
const tools = [{type: "function", function: {name: "weather", parameters: {type: "object", properties: {}}}}];
const runner = client.chat.completions.stream(
  {model: "org/toy", messages: [{role: "user", content: "TWO CALLS"}], tools});
const final = await runner.finalChatCompletion();
heard.calls = final.choices[0].message.tool_calls.map(call => JSON.parse(call.function.arguments).city);
try { await ask("x", {temperature: 9}); } catch (error) { heard.error = [error.constructor.name, error.param]; }
console.log(JSON.stringify(heard));
"""


async def run(*command: str, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, f"{' '.join(command)}: {err.decode()[-2000:]}"
    return out.decode()


@pytest.fixture
async def project() -> Path:
    """A folder with the client in it, kept between runs; npm fetches it the first time."""
    assert shutil.which("npm"), "this test needs node and npm on the PATH"
    folder = Path(tempfile.gettempdir()) / f"dynamo-openai-node-{VERSION}"
    folder.mkdir(exist_ok=True)
    if not (folder / "node_modules" / "openai" / "package.json").exists():
        (folder / "package.json").write_text('{"type": "module", "private": true}')
        await run("npm", "install", "--no-audit", "--no-fund", "--silent", f"openai@{VERSION}", cwd=folder)
    return folder


async def test_the_javascript_client_streams_chats_calls_tools_and_raises(
    live: Live, toy: Scripted, project: Path, tmp_path: Path
) -> None:
    script = project / f"{tmp_path.name}.mjs"
    script.write_text(SCRIPT)
    try:
        heard = json.loads(await run("node", str(script), live.url, cwd=project))
    finally:
        script.unlink()
    assert heard["text"] == "🎉 Grüße, 你好!"
    assert heard["finish"] == "stop"
    assert heard["usage"]["total_tokens"] == heard["usage"]["prompt_tokens"] + heard["usage"]["completion_tokens"]
    assert heard["calls"] == ["Lyon", "Köln"]
    assert heard["error"] == ["BadRequestError", "temperature"]
