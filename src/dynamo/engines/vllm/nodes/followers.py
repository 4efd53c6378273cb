"""Whether the nodes of an engine are still there: a leader holds a connection of each follower, which watches it too.

vLLM's processes of the leader wait for a follower that has ended: for minutes, or until the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable

_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that no longer answers is gone after 30 seconds."""
_GREETING_SECONDS = 10.0


def keep_probing(held: socket.socket) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):
            held.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def until_leader_leaves(host: str, port: int) -> None:
    """Returns when the store at which all processes of the engine met, which is part of the leader, is closed."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, port)
        keep_probing(writer.get_extra_info("socket"))
        await reader.read()  # it sends nothing to a connection that asks for nothing
    except OSError:
        """It rejected the connection, or broke it off."""
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class Followers:
    """Each follower holds a connection for as long as it lives. `lost` is called when one ends."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.secret = secrets.token_hex(16)
        self.port = 0
        self._lost = lost
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def count(self) -> int:
        return len(self._open)

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._hold, None, 0, family=socket.AF_INET)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            for writer in self._open:
                writer.close()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        keep_probing(writer.get_extra_info("socket"))
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_GREETING_SECONDS):
                said = await reader.readexactly(len(self.secret))
            if secrets.compare_digest(said, self.secret.encode()):
                with contextlib.suppress(OSError):
                    await reader.read()
                if self._server is not None:
                    self._lost()
        self._open.discard(writer)
        writer.close()


def stay_with(host: str, port: int, secret: str) -> socket.socket:
    """A follower's connection to its leader; closing it, or the end of this process, says that the follower ended."""
    held = socket.create_connection((host, port))
    held.sendall(secret.encode())
    keep_probing(held)
    return held
