"""Where the microseconds of a request go, apart from its tokens.

Each stage is measured on requests that all differ, and HTTP with a handler that does nothing else. All figures are CPU
time of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from aiohttp import web

from dynamo.api.answers.sse import CORK, DONE, Cork, EventStream
from dynamo.model import HubConfig, build_card, open_card, resolve
from dynamo.pipeline.preprocess import Preprocessor
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.card import ModelType
from dynamo.protocols.chat import ChatRequest
from dynamo.runtime.plane import frames
from dynamo.runtime.plane.frames import Kind
from figures import table
from load import body
from prompts import MODEL, Prompts, make_model

SHAPES = (64, 2048)
EVENT = b'data: {"id":"chatcmpl-0","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'


async def stages(preprocessor: Preprocessor, prompt: int, count: int) -> dict[str, float]:
    """CPU µs of each stage of a request with this many prompt tokens."""
    prompts = Prompts(3)
    bodies = [body(prompts.next(prompt), 64, stream=True) for _ in range(count)]
    decoder: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest)
    clock = time.process_time
    marks = [clock()]
    asked = [decoder.decode(one) for one in bodies]
    marks.append(clock())
    for one in asked:
        validate_chat(one)
    marks.append(clock())
    for one in asked:
        preprocessor.render(one)
    marks.append(clock())
    prepared = [await preprocessor.chat(one) for one in asked]
    marks.append(clock())
    for each in prepared:
        payload, tokens = frames.encode_request(each.request)
        frames.frame(Kind.REQUEST, frames.Request(1, "path", "id", payload, True, tokens=tokens))
    marks.append(clock())
    decode, validate, render, chat, frame = (
        1e6 * (after - before) / count for before, after in itertools.pairwise(marks)
    )
    return {
        "body decode": decode,
        "validation": validate,
        "chat template": render,
        "tokenisation and options": chat - render,
        "request frame": frame,
    }


async def http(prompt: int, count: int, folder: Path) -> float:
    """CPU µs of aiohttp and sockets: a body read, an event stream opened, two events, closed; 64 clients."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        events = EventStream()
        events.write(EVENT)
        await events.open(request, {"x-request-id": "0", "Cache-Control": "no-cache"})
        events.end(EVENT + DONE)
        await events.ended
        return await events.close()

    app = web.Application()
    app[CORK] = Cork()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    load = str(Path(__file__).with_name("load.py"))
    words = [f"--url={url}", f"--prompt={prompt}", "--concurrency=64", f"--requests={count}", "--hold"]
    words.append(f"--json={folder / 'seen.json'}")
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(sys.executable, load, *words, stdin=pipe, stdout=pipe)
    assert client.stdin
    assert client.stdout
    await client.stdout.readline()
    cpu = time.process_time()
    client.stdin.write(b"\n")
    if await client.wait():
        raise SystemExit("the client process failed")
    cpu = time.process_time() - cpu
    await runner.cleanup()
    return 1e6 * cpu / count


async def measure(options: argparse.Namespace, folder: Path) -> None:
    local = resolve(str(make_model(folder / "model")), config=HubConfig.from_env(os.environ), weights=False)
    card = build_card(local, name=MODEL, model_type=ModelType.Backend)
    preprocessor = Preprocessor(card, open_card(card, HubConfig.from_env(os.environ)))
    columns: list[dict[str, float]] = []
    for prompt in SHAPES:
        rounds = []
        for _ in range(options.rounds):
            one = await stages(preprocessor, prompt, 300)
            one["HTTP: aiohttp, an event stream opened, two writes, closed"] = await http(prompt, 2000, folder)
            rounds.append(one)
        columns.append({name: statistics.median(one[name] for one in rounds) for name in rounds[0]})
    rows = [[name, *(f"{column[name]:.1f}" for column in columns)] for name in columns[0]]
    rows.append(["sum", *(f"{sum(column.values()):.1f}" for column in columns)])
    print(table(["a request", *(f"{prompt} tokens, CPU µs" for prompt in SHAPES)], rows))
    print(f"\nload average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        uvloop.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
