"""A TCP relay in front of one worker that can break its connections the ways a network does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self

_LINGER_NOT = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing the socket resets the connection."""


class FaultProxy:
    """`port` is its own. Its faults act upon all connections, also those that are made while they last."""

    def __init__(self, worker_port: int) -> None:
        self.worker_port = worker_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.delay = 0.0
        """Seconds that everything takes longer."""
        self._loses = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        self.reset()

    @property
    def port(self) -> int:
        assert self._server
        return int(self._server.sockets[0].getsockname()[1])

    def reset(self) -> None:
        """Reset all connections."""
        for writer in tuple(self._writers):
            if (connection := writer.get_extra_info("socket")) is not None:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            writer.transport.abort()

    def half_open(self) -> None:
        """Lose every byte from now on; both sides believe that they are connected."""
        self._loses = True

    def mend(self) -> None:
        """Work again. Connections that have lost bytes are reset, as by a router that has forgotten them."""
        if self._loses:
            self._loses = False
            self.reset()
        self.delay = 0.0

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.worker_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, other_writer}
        try:
            pumps = (self._pump(reader, other_writer), self._pump(other_reader, writer))
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers -= {writer, other_writer}
            writer.transport.abort()
            other_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if not self._loses:
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()
