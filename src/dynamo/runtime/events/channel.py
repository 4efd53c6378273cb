"""The two ends of a ZMQ event channel: an XPUB socket that a publisher binds, and a SUB socket per subscriber.

An event is three frames: subject, number (u64 big-endian, counted from 1 per subject), data.

A new ZMQ subscription takes effect with a delay. To know when, the subscriber also subscribes to a random topic of its
own (a zero byte, then random bytes). The publisher sees that subscription, because XPUB shows subscriptions, and sends
one message on it. Subscriptions travel in order: when that message arrives, all earlier ones are in effect.

The sockets are plain ones whose file descriptor the event loop watches. That descriptor signals new work only once,
and any call on the socket may consume the signal, so both ends poll again after every call (`_poll_soon`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial

import zmq

from dynamo.runtime.events.base import EventPlaneError, check_subject
from dynamo.runtime.events.curve import ZAP_ADDRESS, CurveKeys

HIGH_WATER = 100_000
"""Events that may wait in each direction of a channel; further ones are lost."""
MAX_EVENT_BYTES = 64 << 20
BATCH = 1000
"""Messages handled before other work of the loop gets its turn."""
MAX_TOPICS = 4096

_JOIN = b"\x00"
_JOIN_BYTES = 16


class _SocketEnd:
    """A ZMQ socket in the event loop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = context.socket(kind)
        self.closed = False
        self._poll_scheduled = False
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, MAX_EVENT_BYTES),
            (zmq.IPV6, "[" in address),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 1000),
            # A peer whose machine vanished is noticed, and does not fill the queue up to its limit.
            (zmq.HEARTBEAT_IVL, 5000),
            (zmq.HEARTBEAT_TIMEOUT, 15000),
        ):
            self.socket.setsockopt(option, value)
        self._loop.add_reader(self.socket.FD, self._poll)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self.socket.FD)
            self.socket.close()

    def _poll_soon(self) -> None:
        if not self._poll_scheduled:
            self._poll_scheduled = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        self._poll_scheduled = False
        for _ in range(BATCH):
            if self.closed:
                return
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._receive(frames)
        self._poll_soon()

    def _receive(self, frames: list[bytes]) -> None:
        raise NotImplementedError


class PublishingEnd(_SocketEnd):
    """Sends events to all connected subscribers; a slow one loses the events it does not read."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], host: str, keys: CurveKeys | None = None) -> None:
        address = channel_address(host, 0)
        super().__init__(context, zmq.XPUB, address)
        if keys:
            keys.protect_server(self.socket)
        self._topics: dict[str, _Topic] = {}
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise EventPlaneError(f"cannot publish events from {host}: {error}") from error
        self.port = int(self.socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def send(self, subject: str, data: bytes) -> None:
        topic = self._topics.get(subject)
        if topic is None:
            check_subject(subject)
            topic = self._topics[subject] = _Topic(subject, 1)
        frames = (topic.name, topic.next_number.to_bytes(8, "big"), data)
        topic.next_number += 1
        self.socket.send_multipart(frames, zmq.NOBLOCK)
        self._poll_soon()

    def _receive(self, frames: list[bytes]) -> None:
        # b"\x01" + topic is a subscription; anything else a peer sends is ignored.
        topic = frames[0][1:]
        joins = len(frames) == 1 and frames[0][:1] == b"\x01"
        if joins and topic.startswith(_JOIN) and len(topic) == 1 + _JOIN_BYTES:
            self.socket.send_multipart((topic, bytes(8), b""), zmq.NOBLOCK)


class Doorkeeper(_SocketEnd):
    """Decides for all publishing ends of a context which clients may connect."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys) -> None:
        super().__init__(context, zmq.ROUTER, ZAP_ADDRESS)
        self._keys = keys
        self.socket.bind(ZAP_ADDRESS)

    def _receive(self, frames: list[bytes]) -> None:
        # libzmq asks like a REQ socket: its address and an empty frame come before the question.
        sender, empty, *question = frames
        self.socket.send_multipart([sender, empty, *self._keys.answer(question)], zmq.NOBLOCK)
        self._poll_soon()


class SubscribingEnd(_SocketEnd):
    """Receives the events of one publisher; malformed messages are ignored and counted in `malformed`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        prefixes: Iterable[str],
        deliver: Callable[[str, bytes], None],
        missed: Callable[[int], None],
        keys: CurveKeys | None = None,
    ) -> None:
        super().__init__(context, zmq.SUB, address)
        if keys:
            keys.protect_client(self.socket)
        self.address = address
        self.malformed = 0
        self._deliver = deliver
        self._missed = missed
        self._joins: dict[bytes, asyncio.Future[None]] = {}
        self._topics: dict[bytes, _Topic] = {}
        try:
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise EventPlaneError(f"cannot connect to events at {address!r}: {error}") from error
        for prefix in prefixes:
            self.listen(prefix)

    def listen(self, prefix: str) -> None:
        """ZMQ counts subscriptions: each `listen` needs its own `ignore`."""
        self.socket.subscribe(prefix)
        self._poll_soon()

    def ignore(self, prefix: str) -> None:
        self.socket.unsubscribe(prefix)
        self._topics.clear()  # numbers skipped while not subscribed are not losses
        self._poll_soon()

    def join(self) -> asyncio.Future[None]:
        """Done once the publisher knows all subscriptions made so far."""
        joined: asyncio.Future[None] = self._loop.create_future()
        topic = _JOIN + os.urandom(_JOIN_BYTES)
        self._joins[topic] = joined
        joined.add_done_callback(partial(self._end_join, topic))
        self.socket.subscribe(topic)
        self._poll_soon()
        return joined

    def close(self) -> None:
        super().close()
        for joined in tuple(self._joins.values()):
            if not joined.done():
                joined.set_result(None)

    def _end_join(self, topic: bytes, joined: asyncio.Future[None]) -> None:
        del self._joins[topic]
        if not self.closed:
            self.socket.unsubscribe(topic)
            self._poll_soon()

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            self.malformed += 1
            return
        name, number, data = frames
        topic = self._topics.get(name)
        if topic is None:
            if name.startswith(_JOIN):
                joined = self._joins.get(name)
                if joined and not joined.done():
                    joined.set_result(None)
                return
            try:
                subject = name.decode("ascii")
                check_subject(subject)
            except (UnicodeDecodeError, EventPlaneError):
                self.malformed += 1
                return
            if len(self._topics) >= MAX_TOPICS:
                self._topics.clear()
            topic = self._topics[name] = _Topic(subject, int.from_bytes(number, "big"))
        count = int.from_bytes(number, "big")
        if count > topic.next_number:
            self._missed(count - topic.next_number)
        topic.next_number = count + 1
        self._deliver(topic.subject, data)


class _Topic:
    __slots__ = ("name", "next_number", "subject")

    def __init__(self, subject: str, next_number: int) -> None:
        self.subject = subject
        self.name = subject.encode()
        self.next_number = next_number


def channel_address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
