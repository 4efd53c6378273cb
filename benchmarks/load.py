"""A closed loop of chat clients on raw sockets, cheap enough not to be the bottleneck.

Each user keeps one connection and sends its next request when the last one is answered. Run as a program, it writes its
results to a file, so that several processes can load one server together.

`--ids` sends token ids to `/v1/completions`: servers that render and tokenize chats differently then do equal work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct

from prompts import MODEL, Prompts

_FRAMING = re.compile(rb"\r\n[0-9a-fA-F]+\r\n")
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d+)')
_CHOSEN = re.compile(rb'"chosen"\s*:\s*(\{[^{}]*\})')
_WORKER = re.compile(rb'"decode_worker_id"\s*:\s*(\d+)')
_CHAT, _COMPLETION = (b'"content":"', b'"content":""'), (b'"text":"', b'"text":""')
_LAST_CHUNK = b"0\r\n\r\n"
_TAIL = 8192
"""Bytes kept of an answer: its last chunks, with the router's reasons if requested."""


class Reply(Struct):
    """One answer; times are CLOCK_MONOTONIC seconds, the same for all processes of a machine."""

    sent: float
    first: float = 0.0
    ended: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    worker: int = 0
    """0 unless the request asked for `worker_id`."""
    chosen: dict[str, Any] | None = None
    """The router's view of that worker, if the request asked for `routing`."""
    events: int = 0
    reads: int = 0
    gaps: list[float] = []
    error: str | None = None


class Connection(asyncio.Protocol):
    def __init__(self, *, quickack: bool) -> None:
        self._quickack = quickack
        self._markers = _CHAT
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._reply = Reply(0.0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._socket = transport.get_extra_info("socket")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._finish("the connection was closed")

    @property
    def open(self) -> bool:
        return self._transport is not None

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def ask(self, request: bytes, *, stream: bool) -> asyncio.Future[Reply]:
        assert self._transport
        self._done = asyncio.get_running_loop().create_future()
        self._stream = stream
        self._markers = _COMPLETION if request.startswith(b"POST /v1/completions ") else _CHAT
        self._head = b""
        self._status = 0
        self._left = -1
        self._tail = b""
        self._last = 0.0
        self._reply = Reply(time.monotonic(), gaps=[])
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._quickack and self._socket:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if not self._status:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._status = int(head[9:12])
            length = _LENGTH.search(head)
            self._left = int(length[1]) if length else -1
        if self._stream and self._status == 200:
            self._count(data, now)
        self._tail = (self._tail + data)[-_TAIL:]
        if self._left >= 0:
            self._left -= len(data)
        if self._left == 0 or (self._left < 0 and self._tail.endswith(_LAST_CHUNK)):
            self._finish(None, now)

    def _count(self, data: bytes, now: float) -> None:
        """Count events with content. A marker may span two reads, so the end of the last read is searched again."""
        before = self._tail[-len(self._markers[1]) :]
        events = _with_content(before + data, self._markers) - _with_content(before, self._markers)
        if not events:
            return
        reply = self._reply
        if reply.events:
            reply.gaps.append(now - self._last)
        else:
            reply.first = now
        if events > 1:
            reply.gaps.extend([0.0] * (events - 1))
        reply.events += events
        reply.reads += 1
        self._last = now

    def _finish(self, error: str | None, now: float = 0.0) -> None:
        if self._done is None or self._done.done():
            return
        reply = self._reply
        reply.ended = now or time.monotonic()
        reply.first = reply.first or reply.ended
        text = _FRAMING.sub(b"", self._tail)
        reply.tokens = _last(_TOKENS, text, reply.events)
        reply.prompt_tokens = _last(_PROMPT, text)
        reply.cached_tokens = _last(_CACHED, text)
        reply.worker = _last(_WORKER, text)
        chosen = _CHOSEN.search(text)
        reply.chosen = json.loads(chosen[1]) if chosen else None
        if error is None and self._status != 200:
            error = f"HTTP {self._status}: {text[-300:]!r}"
        if error is None and self._stream and b"[DONE]" not in text:
            error = f"no [DONE] at the end: {text[-200:]!r}"
        reply.error = error
        self._done.set_result(reply)


def _last(pattern: re.Pattern[bytes], text: bytes, otherwise: int = 0) -> int:
    found = pattern.findall(text)
    return int(found[-1]) if found else otherwise


def _with_content(data: bytes, markers: tuple[bytes, bytes]) -> int:
    # The byte after a marker decides whether the content is empty, so a marker at the very end waits for the next read.
    some, empty = markers
    return data.count(some, 0, len(data) - 1) - data.count(empty)


def completion(prompt: list[int], output: int, *, model: str = MODEL) -> bytes:
    """A streamed completion of token ids."""
    asked = {
        "model": model, "prompt": prompt, "max_tokens": output, "min_tokens": output, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return json.dumps(asked, separators=(",", ":")).encode()


def body(prompt: str, output: int, *, stream: bool, model: str = MODEL) -> bytes:
    asked: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": output,
        "stream": stream,
        "ignore_eos": True,
    }
    if stream:
        asked["stream_options"] = {"include_usage": True}
    return json.dumps(asked, separators=(",", ":")).encode()


def http_request(content: bytes, path: str = "/v1/chat/completions") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    return head.encode() + b"%d\r\n\r\n" % len(content) + content


def requests(prompts: Prompts, count: int, prompt: int, output: int, *, stream: bool) -> list[bytes]:
    return [http_request(body(prompts.next(prompt), output, stream=stream)) for _ in range(count)]


def requests_of_ids(seed: int, count: int, prompt: int, output: int) -> list[bytes]:
    """Token ids that every vocabulary of the benchmarks has, and none of which is special."""
    draw = random.Random(seed)
    return [
        http_request(completion(draw.choices(range(300, 10_000), k=prompt), output), "/v1/completions")
        for _ in range(count)
    ]


async def connect(url: str, *, quickack: bool = True) -> Connection:
    host, _, port = url.removeprefix("http://").rpartition(":")
    loop = asyncio.get_running_loop()
    for attempt in range(20):
        try:
            return (await loop.create_connection(lambda: Connection(quickack=quickack), host, int(port)))[1]
        except OSError:
            if attempt == 19:
                raise
            await asyncio.sleep(0.05)
    raise AssertionError("the loop returns or raises")


class Users:
    """Open connections that share a list of requests."""

    def __init__(self, url: str, *, quickack: bool = True) -> None:
        self._url = url
        self._quickack = quickack
        self._connections: list[Connection] = []

    async def open(self, count: int) -> None:
        while len(self._connections) < count:
            few = min(100, count - len(self._connections))
            self._connections += await asyncio.gather(*(self._connect() for _ in range(few)))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def run(
        self, requests: list[bytes], *, stream: bool, until: float = float("inf"), within: float = 0
    ) -> list[Reply]:
        """Send all requests, or only until the time `until`; returns when all sent ones are answered.

        Users begin at random moments `within` these seconds.
        """
        replies: list[Reply] = []
        pending = iter(requests)
        begins = [random.random() * within for _ in self._connections]
        await asyncio.gather(
            *(self._user(number, pending, stream, until, replies, after) for number, after in enumerate(begins))
        )
        return replies

    async def _connect(self) -> Connection:
        return await connect(self._url, quickack=self._quickack)

    async def _user(
        self, number: int, pending: Iterator[bytes], stream: bool, until: float, replies: list[Reply], after: float = 0
    ) -> None:
        if after:
            await asyncio.sleep(after)
        for request in pending:
            if time.monotonic() > until:
                return
            if not self._connections[number].open:
                self._connections[number] = await self._connect()
            replies.append(await self._connections[number].ask(request, stream=stream))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ids", action="store_true", help="token ids to /v1/completions instead of chats")
    parser.add_argument("--within", type=float, default=0, help="seconds within which users begin (%(default)s)")
    parser.add_argument("--hold", action="store_true", help="connect, print 'ready', and begin when a line is read")
    parser.add_argument("--json", type=Path, required=True, help="where to write the results")
    options = parser.parse_args()
    if options.ids:
        row = requests_of_ids(options.seed, options.requests, options.prompt, options.output)
    else:
        row = requests(Prompts(options.seed), options.requests, options.prompt, options.output, stream=True)
    users = Users(options.url, quickack=False)
    await users.open(options.concurrency)
    if options.hold:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    cpu = time.process_time()
    replies = await users.run(row, stream=True, within=options.within)
    users.close()
    gaps = sorted(gap for reply in replies for gap in reply.gaps)
    results: dict[str, Any] = {
        "cpu": time.process_time() - cpu,
        "times": [(reply.sent, reply.first, reply.ended) for reply in replies],
        "tokens": sum(reply.tokens for reply in replies),
        "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
        "events": sum(reply.events for reply in replies),
        "gaps": gaps[:: max(1, len(gaps) // 20_000)],
        "errors": [reply.error for reply in replies if reply.error],
    }
    options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    uvloop.run(main())
