"""How long a hostile client holds up everyone else.

First, mutated bodies, frames, events and records go through the parsers, one call at a time: the longest call is the
longest time the event loop would be held. Then 64 paced streams run beside each of a list of hostile clients, with real
processes, and their inter-token latency is compared with that of the same streams alone, just before and after. The
hostile client runs on the same machine but at the lowest priority, so that what it costs to be hostile does not count.

python benchmarks/hostile.py [--mutations 100000] [--seed 1] [--seconds 6] [--only mutations|clients]
    [--client '40 MB of base64']
"""

from __future__ import annotations

import argparse
import gc
import http.client
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dynamo.api.anthropic.request import MessagesRequest
from dynamo.api.anthropic.to_chat import anthropic_to_chat
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.to_chat import responses_to_chat
from dynamo.kv import messages as kv
from dynamo.model import HubConfig, build_card, open_card, resolve
from dynamo.pipeline.preprocess import Preprocessor
from dynamo.pipeline.validate import validate_chat, validate_completion, validate_embedding
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import BodyLimits, check_shape
from dynamo.protocols.card import ModelType
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.long_strings import decode_in_steps
from dynamo.runtime import records
from dynamo.runtime.plane import frames
from dynamo.runtime.plane.frames import FrameDecoder, Kind
from figures import percentile, table
from load import Reply, Users, requests
from processes import Stack
from prompts import MODEL, Prompts, make_model
from support.bodies_mutated import PATHS, mutated_body

REFUSALS = (DynamoException, ValueError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
Call = Callable[[bytes], Iterator[None]]


class Longest:
    """The longest of many calls."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.culprit = b""
        self.calls = 0

    def time(self, call: Call, data: bytes) -> None:
        took = longest_turn(call, data)
        self.calls += 1
        if took > self.seconds:
            # Once more: caches may have been cold.
            took = min(took, longest_turn(call, data))
            if took > self.seconds:
                self.seconds, self.culprit = took, data


def longest_turn(call: Call, data: bytes) -> float:
    """The most CPU time between two places where the call lets others have their turn."""
    longest, steps, clock = 0.0, call(data), time.thread_time
    while True:
        began = clock()
        try:
            next(steps)
        except StopIteration:
            return max(longest, clock() - began)
        except REFUSALS:
            return max(longest, clock() - began)
        longest = max(longest, clock() - began)


def in_one_turn(call: Callable[[bytes], object]) -> Call:
    def steps(data: bytes) -> Iterator[None]:
        call(data)
        return
        yield

    return steps


def route(preprocessor: Preprocessor, kind: Any) -> Call:
    """What happens to a body until its prompt is encoded."""
    decoder: BodyDecoder[Any] = BodyDecoder(kind)
    limits = BodyLimits()

    def call(body: bytes) -> Iterator[None]:
        spans = yield from check_shape(body, limits)
        request = yield from decode_in_steps(decoder, body, spans, [])
        match request:
            case CompletionRequest():
                validate_completion(request)
            case EmbeddingRequest():
                validate_embedding(request)
            case ResponsesRequest():
                request = responses_to_chat(request)
            case MessagesRequest():
                request = anthropic_to_chat(request)
        if isinstance(request, ChatRequest):
            validate_chat(request)
            preprocessor.render(request)

    return call


FILLERS: tuple[bytes, ...] = (
    b"1,", b"100000,", b"[1],", b"[],", b"{},", b'"a",', b'{"a":1},', b"1.5e300,", b"1e-300,", b"true,",
    b'{"role":"user","content":""},', b'{"role":"user","content":[{"type":"text","text":""}]},',
    b'{"type":"text","text":"a"},', b'{"type":"function","function":{"name":"f"}},', b"0.%s," % (b"3" * 700),
)  # fmt: skip
TEXTS = (b" ", b"a", b"\\n", b"\\u4e16", "é".encode(), "👋".encode(), b"{{", b"<|im_end|>", b"\\\\", b'\\"')
LISTS = ("messages", "prompt", "input", "tools", "documents", "stop", "guided_choice", "logit_bias", "metadata", "x")


def large_body(rng: random.Random) -> bytes:
    """A body that repeats one thing in one field until it has up to 8 MB."""
    size = int(2 ** rng.uniform(14, 23))
    if rng.random() < 0.5:
        filler = rng.choice(FILLERS)
        value = b"[" + filler * (size // len(filler)) + filler[:-1] + b"]"
        if rng.random() < 0.3:
            value = b'{"a":' + value + b"}"
    else:
        filler = rng.choice(TEXTS)
        value = b'"' + filler * (size // len(filler)) + b'"'
    if rng.random() < 0.2:
        value = b"{" + b",".join(b'"%x":1' % number for number in range(size // 8)) + b"}"
    name = rng.choice(LISTS)
    rest = b"" if name == "messages" else b'"messages":[{"role":"user","content":"a"}],'
    return b'{"model":"m",' + rest + b'"' + name.encode() + b'":' + value + b"}"


def changed(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them replaced, removed, repeated."""
    changing = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changing) + 1)
        match rng.randrange(4):
            case 0:
                changing[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changing[at : at + rng.randrange(1, 9)]
            case 2:
                changing[at:at] = changing[at : at + 64] * rng.choice((1, 2, 1000))
            case _:
                changing[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(changing)


def sample_frames() -> list[bytes]:
    request = frames.Request(1, "a/b/c", "id", frames.encode_payload({"token_ids": [1] * 50}), True, tokens=bytes(400))
    made = [
        (Kind.HELLO, frames.Hello(nonce=bytes(16))),
        (Kind.REQUEST, request),
        (Kind.CANCEL, frames.Cancel(1)),
        (Kind.DELTAS, {number: [number] for number in range(64)}),
        (Kind.ITEM, frames.Item(1, frames.encode_payload({"text": "a" * 99}))),
        (Kind.ERROR, frames.Error(1, "unknown", "why")),
    ]
    return [frames.frame(kind, body) for kind, body in made]


def sample_events() -> list[bytes]:
    stored = [kv.RouterEvent(worker_id=1, event_id=n, data=kv.Stored(list(range(n, n + 16)))) for n in range(16)]
    return [msgspec.msgpack.encode(kv.RouterEventBatch(version=2, events=stored))]


def mutations(preprocessor: Preprocessor, card: bytes, count: int, seed: int) -> Iterator[tuple[str, Longest]]:
    rng = random.Random(seed)
    routes = {path: route(preprocessor, kind) for path, kind in PATHS.items()}
    events = msgspec.msgpack.Decoder(kv.RouterEventBatch)
    frame_samples, event_samples = sample_frames(), sample_events()
    bodies, large, framed, evented, recorded = (Longest() for _ in range(5))
    for _ in range(count * 6 // 10):
        path = rng.choice(list(PATHS))
        bodies.time(routes[path], mutated_body(rng, path))
    yield "bodies with mutated fields", bodies
    for _ in range(count // 200):
        large.time(routes[rng.choice(list(PATHS))], large_body(rng))
    yield "bodies that repeat one thing, up to 8 MB", large
    for _ in range(count * 2 // 10):
        framed.time(in_one_turn(lambda data: FrameDecoder().feed(data)), changed(rng, rng.choice(frame_samples)))
    yield "frames", framed
    for _ in range(count // 10):
        evented.time(in_one_turn(events.decode), changed(rng, rng.choice(event_samples)))
    yield "KV events", evented
    for _ in range(count // 10):
        recorded.time(in_one_turn(records.decode_card), changed(rng, card))
    yield "discovery records", recorded


def print_mutations(folder: Path, count: int, seed: int) -> None:
    hub = HubConfig.from_env(os.environ)
    card = build_card(resolve(str(folder), config=hub, weights=False), name=MODEL, model_type=ModelType.Backend)
    preprocessor = Preprocessor(card, open_card(card, hub))
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    rows = []
    for name, longest in mutations(preprocessor, records.encode(card), count, seed):
        rows.append([name, str(longest.calls), f"{1e3 * longest.seconds:.1f}", repr(longest.culprit[:72])[:90]])
        print(f"{name}: longest {1e3 * longest.seconds:.1f} ms", file=sys.stderr, flush=True)
    print(table(["input", "count", "longest CPU ms", "culprit"], rows))


def post(url: str, path: str, body: bytes) -> int:
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def chat(**fields: object) -> bytes:
    return msgspec.json.encode(
        {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, **fields}
    )


def biases(count: int) -> dict[str, int]:
    return {str(token): 1 for token in range(count)}


CLIENTS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "n=128 with 2,000 biases and 8 KB of stop strings": lambda: (
        "/v1/chat/completions", chat(n=128, logit_bias=biases(2000), stop=["s" * 255] * 32)),
    "n=128 with a million biases": lambda: ("/v1/chat/completions", chat(n=128, logit_bias=biases(1_000_000))),
    "12 MB of spaces": lambda: ("/v1/completions", msgspec.json.encode({"model": MODEL, "prompt": " " * 12_000_000})),
    "128 prompts of 60,000 spaces": lambda: (
        "/v1/completions", msgspec.json.encode({"model": MODEL, "prompt": [" " * 60_000] * 128})),
    "a grammar of 200,000 alternatives": lambda: (
        "/v1/chat/completions", chat(guided_grammar="start: " + " | ".join(f'"w{n}"' for n in range(200_000)))),
    "a million guided choices": lambda: (
        "/v1/chat/completions", chat(guided_choice=[f"c{n}" for n in range(1_000_000)])),
    "10 million token ids": lambda: (
        "/v1/completions", msgspec.json.encode({"model": MODEL, "prompt": [1] * 10_000_000})),
    "490,000 token ids": lambda: ("/v1/completions", msgspec.json.encode({"model": MODEL, "prompt": [1] * 490_000})),
    "500,000 messages": lambda: ("/v1/chat/completions", chat(messages=[{"role": "user", "content": ""}] * 500_000)),
    "4,000 messages": lambda: ("/v1/chat/completions", chat(messages=[{"role": "user", "content": ""}] * 4000)),
    "2 million unknown fields": lambda: ("/v1/chat/completions", chat(**{f"x{n}": 0 for n in range(2_000_000)})),
    "60,000 unknown fields": lambda: ("/v1/chat/completions", chat(**{f"x{n}": 0 for n in range(60_000)})),
    "40 MB of base64": lambda: ("/v1/chat/completions", chat(metadata={"image": "A" * 40_000_000})),
    "40 MB of base64 with escapes": lambda: (
        "/v1/chat/completions", chat(metadata={"image": "@"}).replace(b"@", (b"A" * 62 + b"\\/") * 625_000)),
    "40 MB in an unknown field": lambda: ("/v1/chat/completions", chat(x="A" * 40_000_000)),
    "40 MB of text in a message": lambda: (
        "/v1/chat/completions", chat(messages=[{"role": "user", "content": "A" * 40_000_000}])),
    "an image of 40 MB": lambda: (
        "/v1/chat/completions", chat(messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000_000}}]}])),
    "40 MB in a prompt": lambda: (
        "/v1/completions", msgspec.json.encode({"model": MODEL, "prompt": "A" * 40_000_000})),
    "40 MB of metadata for a response": lambda: (
        "/v1/responses", msgspec.json.encode({
            "model": MODEL, "input": "a", "max_output_tokens": 4, "metadata": {"image": "A" * 40_000_000}})),
    "a million slow numbers": lambda: (
        "/v1/chat/completions", chat(documents=[{"a": 1}])[:-1] + b',"chat_template_kwargs":{"a":['
        + b"1.5e300," * 1_000_000 + b"1]}}"),
}  # fmt: skip


def yield_processors() -> None:
    """A hostile client has processors of its own, elsewhere: here it takes only what the others leave."""
    os.nice(19)


def be_hostile(name: str, url: str, seconds: float) -> None:
    path, body = CLIENTS[name]()
    yield_processors()
    print("ready", flush=True)
    sys.stdin.readline()
    statuses: dict[int, int] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        status = post(url, path, body)
        statuses[status] = statuses.get(status, 0) + 1
        time.sleep(0.05)
    print(statuses)


def unfinished_bodies(url: str, seconds: float) -> None:
    """Twenty connections, each with 40 MB of a body that never ends."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    yield_processors()
    print("ready", flush=True)
    sys.stdin.readline()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 41000000\r\n\r\n"
    opened = []
    for _ in range(20):
        one = socket.create_connection((host, int(port)))
        try:
            one.sendall(head + b" " * 40_000_000)
        except OSError:
            pass
        opened.append(one)
    time.sleep(seconds)
    print("held")


UNFINISHED = "20 unfinished bodies of 40 MB"


async def paced(url: str, seconds: float, seed: int) -> list[Reply]:
    users = Users(url, quickack=False)
    await users.open(64)
    try:
        row = requests(Prompts(seed), 4000, 16, 64, stream=True)
        return await users.run(row, stream=True, until=time.monotonic() + seconds)
    finally:
        users.close()


def beside(stack: Stack, name: str | None, seconds: float) -> list[str]:
    frontend, worker = stack.children["frontend"], stack.children["mocker"]
    hostile = None
    if name:
        words = [sys.executable, __file__, "--be", name, "--url", stack.url, "--seconds", str(seconds)]
        hostile = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert hostile.stdout
        assert hostile.stdin
        hostile.stdout.readline()
        hostile.stdin.write("\n")
        hostile.stdin.flush()
    cpu = frontend.cpu(), worker.cpu()
    replies = uvloop.run(paced(stack.url, seconds, 7))
    said = hostile.communicate()[0].strip() if hostile else ""
    gaps = [1e3 * gap for reply in replies for gap in reply.gaps]
    errors = sum(reply.error is not None for reply in replies)
    return [
        name or "alone", f"{percentile(gaps, 50):.1f}", f"{percentile(gaps, 99):.1f}", f"{max(gaps):.0f}",
        f"{frontend.cpu() - cpu[0]:.1f}", f"{worker.cpu() - cpu[1]:.1f}", f"{frontend.rss() / 1e6:.0f}",
        str(errors), said,
    ]  # fmt: skip


def print_clients(folder: Path, model: Path, names: list[str], seconds: float) -> None:
    head = [
        "hostile client", "ITL p50 ms", "p99", "p99 alone, before and after", "ratio", "load", "longest",
        "frontend CPU s", "worker CPU s", "RSS MB", "errors", "answers",
    ]  # fmt: skip
    rows = []
    with Stack(folder / "clients") as stack:
        stack.frontend()
        stack.mocker(model, MODEL, "--speedup-ratio=1", "--decode-speedup-ratio=0.3")
        stack.until("/v1/models", f'"{MODEL}"'.encode())
        beside(stack, None, 2)
        before = beside(stack, None, seconds)
        for name in names:
            row, after = beside(stack, name, seconds), beside(stack, None, seconds)
            # What other programs take of the processors changes by the minute: compare what ran just before and after.
            alone = float(before[2]), float(after[2])
            ratio = 2 * float(row[2]) / max(sum(alone), 0.1)
            load = f"{os.getloadavg()[0]:.0f}"
            rows.append([*row[:3], f"{alone[0]:.0f}, {alone[1]:.0f}", f"{ratio:.2f}", load, *row[3:]])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
            before = after
    print(table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="that the streams run beside each hostile client")
    parser.add_argument("--only", choices=("mutations", "clients"))
    parser.add_argument("--client", action="append", help="only this hostile client; may be repeated")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        if options.be == UNFINISHED:
            unfinished_bodies(options.url, options.seconds)
        else:
            be_hostile(options.be, options.url, options.seconds)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_model(folder / "model")
        if options.only != "clients":
            print_mutations(model, options.mutations, options.seed)
        if options.only != "mutations":
            print_clients(folder, model, options.client or [*CLIENTS, UNFINISHED], options.seconds)


if __name__ == "__main__":
    main()
