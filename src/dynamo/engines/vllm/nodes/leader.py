"""Whether the leader of an engine on several nodes is still there, as a follower sees it.

vLLM's processes of a follower wait for the leader's next step for ever, also when the leader has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that no longer answers is gone after 30 seconds."""


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
        """It refused the connection, or broke it off."""
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
