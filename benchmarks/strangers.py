"""What clients without a key cost a frontend: its memory and CPU time, and how long it answers nobody else.

Each attack meets a frontend of its own. The memory is the highest the process had above its start, the CPU time what it
used during the attack, and the wait the longest that a probe of `/live` beside it took.

Two more measures: what it costs to refuse a request in each way, beside a plain 401 on a connection of its own; and
1,000 strangers at once, from a process of the lowest priority, beside a client with a key, whose time to the first
token is compared with that of the same client alone, just before and after.

python benchmarks/strangers.py [--only headers] [--strangers 1000] [--seconds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import grpc.aio

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dynamo.api.kserve import messages
from figures import table

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE = b"Content-Length: 40000000\r\n"
KEY = "a-key-of-the-server"
TICKS = os.sysconf("SC_CLK_TCK")


class Frontend:
    """A real process; `url` and `grpc` are where it listens."""

    async def __aenter__(self) -> Frontend:
        self._process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("dynamo-run"), "in=http", "out=echo", "--http-port", "0",
            "--kserve-grpc-server", "--grpc-metrics-port", "0", "--api-key", KEY,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout
        seen = ""
        while not (found := re.search(r"http://(127\.0\.0\.1:\d+)", seen)) or "serving gRPC on" not in seen:
            line = (await self._process.stdout.readline()).decode()
            if not line:
                raise SystemExit(f"the frontend did not start:\n{seen}")
            seen += line
        self._rest = asyncio.create_task(self._process.stdout.read())
        self.address = found[1]
        grpc_found = re.search(r"serving gRPC on ((?:\d+\.){3}\d+:\d+)", seen)
        assert grpc_found, seen
        self.grpc = grpc_found[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._rest

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def rss(self, which: str = "VmRSS") -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{which}:\s+(\d+)", status)
        assert found
        return int(found[1]) / 1024

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


async def headers(frontend: Frontend, connections: int = 600) -> None:
    """Headers that never end: 120 lines of 8,000 bytes on each connection."""
    host, port = frontend.address.split(":")
    opened = []

    async def one() -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        opened.append(writer)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            for number in range(120):
                writer.write(b"x-%d: %s\r\n" % (number, b"x" * 8000))
                await writer.drain()
        except ConnectionError:
            pass

    await asyncio.gather(*(one() for _ in range(connections)))
    await asyncio.sleep(1)
    for writer in opened:
        writer.transport.abort()


async def idle(frontend: Frontend) -> None:
    """1,000 connections that say nothing."""
    host, port = frontend.address.split(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(1000)]
    await asyncio.sleep(1)
    for _, writer in opened:
        writer.transport.abort()


async def chunks(frontend: Frontend) -> None:
    """600 requests whose bodies of 180 KB come in chunks of a byte."""
    await _bodies(frontend, b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 180_000)


async def large(frontend: Frontend) -> None:
    """600 requests with 1 MB of a body of 40 MB."""
    await _bodies(frontend, LARGE + b"\r\n" + b" " * 1_000_000)


async def _bodies(frontend: Frontend, rest: bytes) -> None:
    """All are sent while the frontend cannot read, so that it finds all of them at once."""
    host, port = frontend.address.split(":")
    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(600)]
    frontend.signal(signal.SIGSTOP)
    for writer in writers:
        writer.write(POST + rest)
    await asyncio.sleep(1)
    frontend.signal(signal.SIGCONT)
    for writer in writers:
        with contextlib.suppress(ConnectionError):
            await writer.drain()
    await asyncio.sleep(2)
    for writer in writers:
        writer.transport.abort()


async def empty_parts(frontend: Frontend) -> None:
    """An upload, with a key, of 2.5 MB of empty parts."""
    parts = b"--b\r\n\r\n\r\n" * (2_500_000 // 9) + b"--b--\r\n"
    await _upload(frontend, parts, {"Authorization": f"Bearer {KEY}"})


async def empty_lines(frontend: Frontend) -> None:
    """An upload, with a key, that begins with 10 MB of empty lines."""
    await _upload(frontend, b"\n" * 10_000_000 + b"--b--\r\n", {"Authorization": f"Bearer {KEY}"})


async def grpc_unary(frontend: Frontend) -> None:
    """16 calls without a key, 40 MB each."""
    request = messages.ModelInferRequest(model_name="echo", raw_input_contents=[b"x" * 40_000_000]).SerializeToString()

    async def one() -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(frontend.grpc, options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            await _unauthenticated(call(request))

    await asyncio.gather(*(one() for _ in range(16)))


async def _unauthenticated(answer: Awaitable[object]) -> None:
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise


async def refused(frontend: Frontend) -> None:
    """1,000 plain requests without a key."""
    async with aiohttp.ClientSession() as session:
        for _ in range(1000):
            async with session.post(f"http://{frontend.address}/v1/chat/completions", json={}) as answer:
                assert answer.status == 401


async def refused_grpc(frontend: Frontend) -> None:
    """1,000 small calls without a key."""
    request = messages.ModelInferRequest(model_name="echo").SerializeToString()
    async with grpc.aio.insecure_channel(frontend.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(1000):
            await _unauthenticated(call(request))


async def _upload(frontend: Frontend, body: bytes, headers: dict[str, str]) -> None:
    headers |= {"Content-Type": "multipart/form-data; boundary=b"}
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(f"http://{frontend.address}/v1/files", data=body, headers=headers) as answer:
                await answer.read()
        except aiohttp.ClientError:
            pass


ATTACKS: tuple[Callable[[Frontend], Awaitable[None]], ...] = (
    headers, idle, chunks, large, empty_parts, empty_lines, grpc_unary, refused, refused_grpc,
)  # fmt: skip


async def _raw(frontend: Frontend, request: bytes) -> bytes:
    """What comes back for these bytes, on a connection of their own."""
    host, port = frontend.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read(1 << 16)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


REFUSALS = {
    "a plain 401": POST + b"Content-Length: 2\r\n\r\n{}",
    "401, a wrong key": POST + b"Authorization: Bearer wrong\r\nContent-Length: 2\r\n\r\n{}",
    "401, 1 MB of a body of 40 MB": POST + LARGE + b"\r\n" + b" " * 1_000_000,
    "401, a body in chunks of a byte": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10_000,
    "401, `Expect: 100-continue`": POST + LARGE + b"Expect: 100-continue\r\n\r\n",
    "401, a form": b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    b"Content-Length: 900000\r\n\r\n" + b"--b\r\n\r\n\r\n" * 100_000,
    "404": b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "431, 40 KB of headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: " + b"y" * 40_000 + b"\r\n\r\n",
    "431, 20,000 headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x:\r\n" * 20_000 + b"\r\n",
    "400, no HTTP": b"\x16\x03\x01" + bytes(range(256)) * 40,
}


async def refusal(name: str, request: bytes, count: int = 500) -> list[str]:
    """The CPU time of one such request; a frontend's own work in that time is the same for all."""
    async with Frontend() as frontend:
        answers = [await _raw(frontend, request) for _ in range(100)]
        used = frontend.cpu()
        for _ in range(count):
            await _raw(frontend, request)
        used = frontend.cpu() - used
        status = answers[0].split(b" ")[1].decode() if answers[0] else "closed"
        return [name, status, f"{1000 * used / count:.2f}"]


async def together(address: str, grpc_address: str, strangers: int, ready: Callable[[], None]) -> None:
    """Strangers of each kind, again and again, until the process ends."""
    host, port = address.split(":")
    large = messages.ModelInferRequest(model_name="echo", raw_input_contents=[b"x" * 40_000_000]).SerializeToString()

    async def slow_headers() -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(120):
            writer.write(b"x-%d: %s\r\n" % (number, b"x" * 1000))
            await writer.drain()
            await asyncio.sleep(0.5)

    async def silent() -> None:
        reader, _ = await asyncio.open_connection(host, int(port))
        await reader.read()

    async def bodies() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(POST + LARGE + b"\r\n" + b" " * 200_000)
        await reader.read()

    async def asks() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(20):
                async with session.post(f"http://{address}/v1/chat/completions", json={}):
                    await asyncio.sleep(1)

    async def calls() -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(grpc_address, options=options) as channel:
            await _unauthenticated(channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(large))

    kinds = [slow_headers] * 40 + [silent] * 20 + [bodies] * 15 + [asks] * 24 + [calls]

    async def stranger(number: int) -> None:
        await asyncio.sleep(number / strangers)
        while True:
            try:
                await kinds[number % len(kinds)]()
            except (OSError, aiohttp.ClientError, grpc.aio.AioRpcError):
                pass
            await asyncio.sleep(1)

    everyone = [asyncio.create_task(stranger(number)) for number in range(strangers)]
    await asyncio.sleep(3)
    ready()
    await asyncio.gather(*everyone)


class Waits(NamedTuple):
    half: float
    most: float
    requests: int

    def __str__(self) -> str:
        return f"{1000 * self.half:.1f} and {1000 * self.most:.1f} ms of {self.requests}"


async def first_tokens(frontend: Frontend, seconds: float) -> Waits:
    """The median and the 99th percentile of the times to the first token, twenty requests a second."""
    body = {
        "model": "echo_full",
        "stream": True,
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "hello " * 20}],
    }
    found: list[float] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            async with session.post(f"http://{frontend.address}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                await answer.content.readany()
                found.append(time.monotonic() - begun)
            await asyncio.sleep(0.05)
    found.sort()
    return Waits(found[len(found) // 2], found[len(found) * 99 // 100], len(found))


async def beside(strangers: int, seconds: float) -> None:
    async with Frontend() as frontend:
        await first_tokens(frontend, 2)
        before, start, used = await first_tokens(frontend, seconds), frontend.rss(), frontend.cpu()
        words = ["--attack", frontend.address, frontend.grpc, "--strangers", str(strangers)]
        attackers = await asyncio.create_subprocess_exec(
            "nice", "-n", "19", sys.executable, __file__, *words, stdout=asyncio.subprocess.PIPE
        )
        assert attackers.stdout
        try:
            await attackers.stdout.readline()
            used = frontend.cpu()
            during = await first_tokens(frontend, seconds)
            used = frontend.cpu() - used
        finally:
            attackers.kill()
            await attackers.wait()
        after, peak = await first_tokens(frontend, seconds), frontend.rss("VmHWM")
        print(f"{strangers} strangers: {peak - start:.0f} MB, {used / seconds:.2f} of a processor")
        for name, waits in (("alone", before), ("beside them", during), ("alone again", after)):
            print(f"time to the first token, median and 99th percentile, {name}: {waits}")
        print(f"ratio of the medians: {2 * during.half / (before.half + after.half):.2f}")


async def measure(attack: Callable[[Frontend], Awaitable[None]]) -> list[str]:
    async with Frontend() as frontend:
        longest, peak, start, ended = 0.0, 0.0, frontend.rss(), False

        async def probe() -> None:
            nonlocal longest, peak
            async with aiohttp.ClientSession() as session:
                while not ended:
                    begun = time.monotonic()
                    async with session.get(f"http://{frontend.address}/live") as answer:
                        await answer.read()
                    longest = max(longest, time.monotonic() - begun)
                    peak = max(peak, frontend.rss("VmHWM"))
                    await asyncio.sleep(0.02)

        probing = asyncio.create_task(probe())
        await asyncio.sleep(0.5)
        used, longest = frontend.cpu(), 0.0
        await attack(frontend)
        used = frontend.cpu() - used
        peak = max(peak, frontend.rss("VmHWM"))
        ended = True
        await probing
        return [attack.__name__, f"{peak - start:.0f}", f"{used:.2f}", f"{1000 * longest:.0f}"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="an attack, `refusals` or `beside`")
    parser.add_argument("--strangers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--attack", nargs=2, metavar=("ADDRESS", "GRPC"), help="be the strangers")
    given = parser.parse_args()
    only = given.only
    if given.attack:
        address, grpc_address = given.attack
        await together(address, grpc_address, given.strangers, lambda: print("ready", flush=True))
    rows = [await measure(attack) for attack in ATTACKS if not only or attack.__name__ in only]
    if rows:
        print(table(["attack", "MB", "CPU s", "longest wait, ms"], rows))
    if not only or "refusals" in only:
        rows = [await refusal(name, request) for name, request in REFUSALS.items()]
        print(table(["refused", "status", "CPU ms"], rows))
    if not only or "beside" in only:
        await beside(given.strangers, given.seconds)


if __name__ == "__main__":
    asyncio.run(main())
