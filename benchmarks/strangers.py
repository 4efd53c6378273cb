"""What clients without a key cost a frontend: its memory and CPU time, and how long it answers nobody else.

Each attack meets a frontend of its own. The memory is the highest the process had above its start, the CPU time what it
used during the attack, and the wait the longest that a probe of `/live` beside it took.

python benchmarks/strangers.py [--only headers]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc.aio

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from dynamo.api.kserve import messages
from figures import table

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
    headers, idle, empty_parts, empty_lines, grpc_unary, refused, refused_grpc,
)  # fmt: skip


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
    parser.add_argument("--only", action="append")
    only = parser.parse_args().only
    rows = [await measure(attack) for attack in ATTACKS if not only or attack.__name__ in only]
    print(table(["attack", "MB", "CPU s", "longest wait, ms"], rows))


if __name__ == "__main__":
    asyncio.run(main())
