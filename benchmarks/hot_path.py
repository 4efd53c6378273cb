"""Where the microseconds of a streamed token go.

The chain is built up one real object at a time: a stage's cost is the cost of the chain with it minus the cost without.
The last measurement is live: the same frames, one every 6 ms, go through the whole chain and aiohttp to clients in
another process. Sending as many bytes at the same pace with bare send() calls and through the loop's transports gives
the shares of the kernel and of uvloop. All figures are CPU time of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop
from aiohttp import web

from dynamo.api.answers.sse import CORK, Cork, EventStream
from dynamo.api.openai.chunks import ChatChoiceWriter, Chunks
from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.running import RunningRequests
from dynamo.model import HubConfig, build_card, open_card, resolve
from dynamo.pipeline.choice import Finish
from dynamo.pipeline.preprocess import Prepared, Preprocessor
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.card import ModelType
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.fields import StreamOptions
from dynamo.router.delivery.delivery import Delivery
from dynamo.router.stream_watch import StreamClock
from dynamo.runtime import Context
from dynamo.runtime.plane import frames
from dynamo.runtime.plane.client_link import ClientLink
from dynamo.runtime.plane.frames import FrameDecoder, Kind
from dynamo.runtime.stream import Sink
from figures import table
from load import body
from prompts import MODEL, Prompts, make_model

STREAMS = 64
PACE = 0.006


class NullSink:
    """The end of a partial chain: a sink, a choice or an event stream that does nothing."""

    has_begun = True

    def tokens(self, ids: list[int]) -> None: ...

    def item(self, value: Any) -> None: ...

    def end(self) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def escaped(self, text: str) -> None: ...

    def finish(self, finish: Finish) -> None: ...

    def write(self, data: bytes) -> None: ...


class Bench:
    def __init__(self, preprocessor: Preprocessor, prepared: Prepared, steps: int) -> None:
        self.preprocessor = preprocessor
        self.prepared = prepared
        self.steps = steps
        self.requests = RunningRequests(FrontendMetrics())
        rng = random.Random(1)
        words = [preprocessor.model.tokenizer.encode(f" {word}")[0] for word in Prompts(2).next(500).split()]
        self.ids = [[rng.choice(words) for _ in range(STREAMS)] for _ in range(steps)]

    def frames(self) -> list[bytes]:
        return [frames.frame(Kind.DELTAS, {stream: [id] for stream, id in enumerate(ids, 1)}) for ids in self.ids]

    def link(self, sink: Callable[[], Sink]) -> ClientLink:
        link = ClientLink(lambda data: None, "bench", beat=3600)
        for _ in range(STREAMS):
            link.request("path", None, Context(), sink(), item_type=EngineOutput, columnar=True)
        return link

    def choice(self, events: Any) -> ChatChoiceWriter:
        served: Any = SimpleNamespace(
            id=f"chatcmpl-{Context().id()}", chunk_object="chat.completion.chunk", created=int(time.time()), n=1,
            choice_count=1, model=SimpleNamespace(name=MODEL), tokenizer=None, usage_of=None, nvext=lambda reason: None,
            request=SimpleNamespace(stream_options=StreamOptions(include_usage=True)),
        )  # fmt: skip
        chunks = Chunks(served, 0, "id")
        chunks.events = events
        return ChatChoiceWriter(chunks, 0)

    def postprocess(self, choice: Any) -> Sink:
        return self.metered(
            self.preprocessor.postprocess(self.prepared, choice, stop_worker=lambda: None, worker=lambda: "bench")
        )

    def metered(self, sink: Any) -> Sink:
        record = self.requests.begin("POST", "/v1/chat/completions", "id", "chat_completions")
        record.served_by(MODEL)
        delivery = self.delivery(sink)
        record.delivering(delivery)
        return delivery.sink

    def delivery(self, sink: Any) -> Delivery:
        # Only `start` asks the router and starts the clock; this stream is started by hand.
        delivery = Delivery(lambda: None, None, self.prepared.request, Context(), sink)  # type: ignore[arg-type]
        delivery._clock = StreamClock(None, 0, 0, 0.0)  # type: ignore[arg-type]
        return delivery

    def per_token(self, run: Callable[[bytes], object]) -> float:
        """CPU µs per token of `run` on every frame; the best of five, because other load can only add to it."""
        fed = self.frames()
        best = float("inf")
        for _ in range(5):
            began = time.process_time()
            for data in fed:
                run(data)
            best = min(best, time.process_time() - began)
        return 1e6 * best / (self.steps * STREAMS)

    def stages(self) -> list[tuple[str, float]]:
        """Pairs of a stage and the chain's cost up to and including it."""
        end = NullSink()
        chains: list[tuple[str, Callable[[], Sink]]] = [
            ("dispatch to the stream's sink", lambda: end),
            ("delivery", lambda: self.delivery(end)),
            ("metrics", lambda: self.delivery(self.metered(end))),
            ("postprocess: ends, limits, id → escaped text", lambda: self.delivery(self.postprocess(end))),
            ("SSE event build", lambda: self.delivery(self.postprocess(self.choice(end)))),
        ]
        decode = ("frame decode (msgpack, one frame per step)", self.per_token(FrameDecoder().feed))
        return [decode, *((name, self.per_token(self.link(sink).feed)) for name, sink in chains)]

    async def live(self, folder: Path) -> tuple[float, int]:
        """CPU µs per token of everything, sockets included, and the bytes of an event."""
        link = ClientLink(lambda data: None, "bench", beat=3600)
        opened = 0
        all_open = asyncio.Event()

        async def handle(request: web.Request) -> web.StreamResponse:
            nonlocal opened
            await request.read()
            events = EventStream()
            sink = self.delivery(self.postprocess(self.choice(events)))
            link.request("path", None, Context(), sink, item_type=EngineOutput, columnar=True)
            sink.tokens(self.ids[0][:1])
            await events.begun()
            await events.open(request, {})
            opened += 1
            if opened == STREAMS:
                all_open.set()
            await events.ended
            return await events.close()

        app = web.Application()
        app[CORK] = Cork()
        app.router.add_post("/v1/chat/completions", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        load = str(Path(__file__).with_name("load.py"))
        words = [f"--url={url}", f"--concurrency={STREAMS}", f"--requests={STREAMS}", f"--json={folder / 'seen.json'}"]
        client = await asyncio.create_subprocess_exec(sys.executable, load, *words)
        await all_open.wait()
        cpu = await paced([partial(link.feed, data) for data in self.frames()])
        for stream in range(1, STREAMS + 1):
            link.feed(frames.frame(Kind.END, frames.End(stream)))
        if await client.wait():
            raise SystemExit("the client process failed")
        await runner.cleanup()
        written: list[bytes] = []
        sized = NullSink()
        sized.write = written.append  # type: ignore[assignment, method-assign]
        choice = self.choice(sized)
        choice.escaped("")
        choice.escaped("word")
        size = len(written[-1])
        return 1e6 * cpu / (self.steps * STREAMS), size + len(f"{size:x}") + 4

    async def sending(self, size: int, *, bare: bool) -> float:
        """CPU µs to send as many bytes at the same pace: with send() calls, or through the event loop's transports."""
        listener = socket.create_server(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
        reader = await asyncio.create_subprocess_exec(sys.executable, __file__, "--drain", port)
        sockets = [listener.accept()[0] for _ in range(STREAMS)]
        for one in sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        transports = [] if bare else [(await loop.connect_accepted_socket(asyncio.Protocol, one))[0] for one in sockets]
        senders = [one.send for one in sockets] if bare else [one.write for one in transports]
        data = b"x" * size

        def send() -> None:
            for sender in senders:
                sender(data)

        cpu = await paced([send] * self.steps)
        for transport in transports:
            transport.close()
        for one in (*sockets, listener):
            one.close()
        await reader.wait()
        return 1e6 * cpu / (self.steps * STREAMS)


async def paced(steps: list[Callable[[], object]]) -> float:
    """CPU seconds of taking these steps, one every PACE seconds."""
    cpu, due = time.process_time(), time.monotonic()
    for step in steps:
        step()
        due += PACE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    return time.process_time() - cpu


def drain(port: int) -> None:
    async def read() -> None:
        async def one() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while await reader.read(65536):
                pass
            writer.close()

        await asyncio.gather(*(one() for _ in range(STREAMS)))

    uvloop.run(read())


async def measure(options: argparse.Namespace, folder: Path) -> None:
    local = resolve(str(make_model(folder / "model")), config=HubConfig.from_env(os.environ), weights=False)
    card = build_card(local, name=MODEL, model_type=ModelType.Backend)
    preprocessor = Preprocessor(card, open_card(card, HubConfig.from_env(os.environ)))
    asked = BodyDecoder(ChatRequest).decode(body(Prompts(0).next(64), 1 << 20, stream=True))
    asked.max_tokens = None
    bench = Bench(preprocessor, await preprocessor.chat(asked), options.steps)
    stages = bench.stages()
    runs = []
    for _ in range(options.rounds):
        live, size = await bench.live(folder)
        runs.append((live, await bench.sending(size, bare=True), await bench.sending(size, bare=False)))
    live, kernel, transport = (statistics.median(column) for column in zip(*runs, strict=True))
    parts = [(name, upto - before) for (_, before), (name, upto) in itertools.pairwise([("", 0.0), *stages])]
    rest = live - stages[-1][1] - transport
    parts.append(("rest: chunk framing, a wake-up per step, CPU caches gone cold in between", rest))
    parts.append(("transport.write and uvloop's flush", transport - kernel))
    parts.append((f"kernel: send() of {size} bytes over loopback, its reader's wake-up included", kernel))
    parts.append(("all, live, one event per token", live))
    rows = [[name, f"{cost:.2f}", f"{100 * cost / live:.0f} %"] for name, cost in parts]
    print(table([f"a token, {STREAMS} streams, a step each {1e3 * PACE:g} ms", "CPU µs", "share"], rows))
    lives = [run[0] for run in runs]
    print(f"\n{options.rounds} rounds, live {min(lives):.1f} to {max(lives):.1f}")
    print(f"load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3, help="live measurements (%(default)s)")
    parser.add_argument("--drain", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drain:
        drain(options.drain)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        uvloop.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
