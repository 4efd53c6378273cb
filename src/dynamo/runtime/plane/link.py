"""What both ends of a connection have in common, whatever carries the bytes.

All deltas of one turn of the event loop leave in one frame, and all frames in one write. Large data leaves earlier, so
that the peer can begin while this side is still busy with the rest, and so do the first tokens of streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from dynamo.protocols.errors import Disconnected, DynamoException, ProtocolError
from dynamo.runtime.metrics import Number
from dynamo.runtime.plane import frames
from dynamo.runtime.plane.frames import FrameDecoder, Kind
from dynamo.runtime.plane.trace import TracedDecoder, is_traced, traced_write

log = logging.getLogger(__name__)

UNHEARD_SECONDS = 2.0
"""A peer that has been silent for so long although it was pinged gets no new requests."""
MAX_GATHERED = 16 * 1024
"""Bytes of frames that wait for the end of a turn."""


class Link:
    """Gathers outgoing frames and writes them once per turn of the loop; detects a silent peer by pings."""

    def __init__(
        self, write: Callable[[bytes], None], peer: str, *, beat: float, close: Callable[[], None], patience: int = 4
    ) -> None:
        self.peer = peer
        self.lost = False
        self._when_lost: list[Callable[[], object]] = []
        self._write = write
        self._close_transport = close
        self._calls: dict[int, Any] = {}
        """The open streams."""
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        if is_traced():
            self._decoder, self._write = TracedDecoder(peer), traced_write(write, peer)
        self._deltas: frames.Deltas = {}
        self._delta_bytes: Number | None = None
        """Where their size is counted: at the endpoint of the latest request, as few connections have two."""
        self._frames: list[bytes] = []
        self._gathered = 0
        self._scheduled = False
        self._urgent = False
        self._beat_every = beat
        self._patience = patience
        self._silent_beats = 0
        self._beat_timer: asyncio.TimerHandle | None = None
        self._on: dict[int, Callable[[Any], None]] = {Kind.PING: self._ping, Kind.PONG: lambda _: None}

    def row(self, side: str) -> dict[str, Any]:
        """This connection, for people."""
        return {"peer": self.peer, "side": side, "streams": len(self._calls), "silent_beats": self._silent_beats}

    def when_lost(self, callback: Callable[[], object]) -> None:
        self._when_lost.append(callback)

    @property
    def unheard(self) -> bool:
        return self._silent_beats * self._beat_every > UNHEARD_SECONDS

    def feed(self, data: bytes) -> None:
        """Read bytes from the peer. A violation of the protocol ends this connection and no other."""
        self._silent_beats = 0
        try:
            messages = self._decoder.feed(data)
            for kind, body in messages:
                handle = self._on.get(kind)
                if handle is None:
                    raise ProtocolError(f"{Kind(kind).name} frame is not for this side")
                handle(body)
        except ProtocolError as error:
            self._report(error)
            self.lose(error)

    def _report(self, error: ProtocolError) -> None:
        log.warning("closing the connection with %s: %s", self.peer, error)

    def send(self, kind: Kind, body: Any = None) -> None:
        encoded = frames.frame(kind, body)
        if self._deltas:
            self._frame_deltas()
        self._frames.append(encoded)
        self._gathered += len(encoded)
        if not self._scheduled:
            self._schedule()
        if self._gathered > MAX_GATHERED:
            self.flush()

    def send_first_tokens(self, stream: int, ids: list[int]) -> None:
        """A client waits for them: they leave before tokens of streams that are under way are gathered."""
        self._deltas[stream] = ids
        self._urgent = True
        if not self._scheduled:
            self._schedule()

    def send_tokens(self, stream: int, ids: list[int]) -> None:
        if self._urgent:
            self.flush()
        deltas = self._deltas
        before = deltas.get(stream)
        deltas[stream] = ids if before is None else before + ids
        if not self._scheduled:
            self._schedule()

    def flush(self) -> None:
        self._scheduled = self._urgent = False
        if self._deltas:
            self._frame_deltas()
        if self._frames and not self.lost:
            data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
            self._frames.clear()
            self._gathered = 0
            self._write(data)

    def _frame_deltas(self) -> None:
        encoded = frames.frame(Kind.DELTAS, self._deltas)
        self._frames.append(encoded)
        if self._delta_bytes is not None:
            self._delta_bytes.value += len(encoded)
        self._deltas.clear()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self.flush)
        if self._beat_timer is None:
            self._beat_timer = self._loop.call_later(self._beat_every, self._beat)

    def _beat(self) -> None:
        """Require a sign of life while streams are open; an idle connection is not checked."""
        self._beat_timer = None
        if self.lost or not self._calls:
            self._silent_beats = 0
            return
        self._silent_beats += 1
        if self._silent_beats > self._patience:
            self.lose(Disconnected(f"nothing heard from {self.peer} for {self._patience * self._beat_every:g} s"))
            return
        self.send(Kind.PING)

    def _ping(self, _: None) -> None:
        self.send(Kind.PONG)

    def lose(self, error: DynamoException) -> None:
        """The connection is gone, or must be closed because of `error`."""
        if self.lost:
            return
        self.flush()
        self.lost = True
        if self._beat_timer:
            self._beat_timer.cancel()
            self._beat_timer = None
        self._close_transport()
        for callback in self._when_lost:
            callback()
        self._lost(error)

    def _lost(self, error: DynamoException) -> None:
        raise NotImplementedError
