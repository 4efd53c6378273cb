"""How the two workers of a request meet when both get it at once: the decode worker asks for the offer of its room.

It connects to the address on the prefill worker's card and sends the room, 8 bytes; it gets the offer as JSON when the
prompt is computed, or a closed connection if it never will be.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

import msgspec

from dynamo.handoff.messages import HandoffOffer
from dynamo.protocols.engine import BootstrapInfo
from dynamo.protocols.errors import Unavailable

_ROOM = struct.Struct(">Q")
_MAX_OFFER = 64 * 1024


class MeetingPlace:
    """The prefill worker's side. A room is open from either worker's arrival until the decode worker has its offer."""

    def __init__(self, seconds: float) -> None:
        """Neither side waits longer than `seconds` for the other."""
        self._seconds = seconds
        self._rooms: dict[int, asyncio.Future[bytes]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve_visitor, host, port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for waiting in self._rooms.values():
            waiting.cancel()

    def put(self, room: int, offer: HandoffOffer) -> None:
        waiting = self._room(room)
        if not waiting.done():
            waiting.set_result(msgspec.json.encode(offer))

    def leave(self, room: int) -> None:
        """Close a room without an offer. A decode worker that arrives later learns so at once, for a while."""
        waiting = self._room(room)
        if not waiting.done():
            waiting.cancel()
        asyncio.get_running_loop().call_later(self._seconds, self._rooms.pop, room, None)

    def _room(self, room: int) -> asyncio.Future[bytes]:
        found = self._rooms.get(room)
        if found is None:
            found = self._rooms[room] = asyncio.get_running_loop().create_future()
        return found

    async def _serve_visitor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = -1
        try:
            async with asyncio.timeout(self._seconds):
                (room,) = _ROOM.unpack(await reader.readexactly(_ROOM.size))
                writer.write(await asyncio.shield(self._room(room)))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._rooms.pop(room, None)
            writer.close()


async def meet(info: BootstrapInfo, seconds: float) -> HandoffOffer:
    """The decode worker's side: the offer of its room. Raises DynamoException, OSError or TimeoutError."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(info.bootstrap_host, info.bootstrap_port)
        try:
            writer.write(_ROOM.pack(info.bootstrap_room))
            data = await reader.read(_MAX_OFFER)
            while data and not reader.at_eof():
                data += await reader.read(_MAX_OFFER)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    if not data:
        raise Unavailable("the prefill worker has no offer for this room")
    try:
        return msgspec.json.decode(data, type=HandoffOffer)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the prefill worker's offer cannot be read: {error}") from None
