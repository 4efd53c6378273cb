"""The request plane over NATS: the same frames as over TCP, cut into numbered messages.

NATS delivers in order but may drop messages. A gap in their numbers counts as a broken connection, which fails its
streams; without numbers the frames would be garbled. No socket closes when a peer dies, so pings are frequent here.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator
from typing import Any

from dynamo.protocols.errors import CannotConnect, Disconnected, Unavailable
from dynamo.protocols.instance import Instance, Transport
from dynamo.runtime.names import new_instance_id
from dynamo.runtime.nats.connection import NatsConnection, NatsError, NatsSubscription
from dynamo.runtime.plane.base import instance_path
from dynamo.runtime.plane.client_link import ClientLink
from dynamo.runtime.plane.handshake import PendingHandshakes
from dynamo.runtime.plane.pool import LinkChannel, LinkPool
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.server_link import ServerLink

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
CONNECT_SECONDS = 5.0
_NUMBER = struct.Struct(">Q")


class Pipe:
    """A connection over NATS: numbered messages out, numbered messages in."""

    def __init__(self, nats: NatsConnection, subject: str, reply: str) -> None:
        self._nats = nats
        self._subject = subject
        self._reply = reply
        self._sent = 0
        self._received = 0
        self.link: ClientLink | ServerLink | None = None

    def write(self, data: bytes) -> None:
        try:
            size = self._nats.max_payload - _NUMBER.size
            for start in range(0, len(data), size):
                message = _NUMBER.pack(self._sent) + data[start : start + size]
                self._nats.publish(self._subject, message, self._reply)
                self._sent += 1
        except NatsError as error:
            if self.link:
                self.link.lose(Disconnected(str(error)))

    def read(self, message: bytes) -> None:
        assert self.link
        if len(message) < _NUMBER.size or _NUMBER.unpack_from(message)[0] != self._received:
            self.link.lose(Disconnected(f"messages between here and {self.link.peer} were lost"))
            return
        self._received += 1
        self.link.feed(message[_NUMBER.size :])


class NatsPlane:
    transport: Transport = "nats"

    def __init__(self, nats: NatsConnection, token: str | None = None) -> None:
        self._nats = nats
        self._token = token
        self._handshakes = PendingHandshakes()
        self._id = f"{new_instance_id():x}"
        self._routes: dict[str, Route] = {}
        self._inbound: dict[str, Pipe] = {}
        self._by_inbox: dict[str, Pipe] = {}
        self._pool = LinkPool(self._connect)
        self._links = 0
        self._takes_requests = False
        self._subscriptions: list[NatsSubscription] = []
        self._forget_state = nats.on_state(self._on_state)

    @property
    def subject(self) -> str:
        return f"dynamo.requests.{self._id}"

    async def start(self) -> None:
        """The owner of the NATS connection starts it: the event plane uses it too."""
        self._subscriptions.append(self._nats.subscribe(f"dynamo.streams.{self._id}.*", self._from_worker))

    async def serve(self, route: Route) -> str:
        if not self._takes_requests:
            self._takes_requests = True
            self._subscriptions.append(self._nats.subscribe(self.subject, self._from_client))
        await self._nats.flush()
        self._routes[route.path] = route
        route.on_close.append(lambda: self._send_draining(route.path))
        return self.subject

    def _send_draining(self, path: str) -> None:
        for pipe in self._inbound.values():
            if isinstance(pipe.link, ServerLink):
                pipe.link.send_draining(path)

    def _from_client(self, _: str, message: bytes, inbox: str) -> None:
        pipe = self._inbound.get(inbox)
        if pipe is None:
            if not inbox:
                return
            pipe = Pipe(self._nats, inbox, "")
            link = ServerLink(
                pipe.write, inbox, self._routes, token=self._token, handshakes=self._handshakes, beat=BEAT_SECONDS
            )
            link.when_lost(lambda: self._inbound.pop(inbox, None))
            pipe.link = link
            self._inbound[inbox] = pipe
        pipe.read(message)

    def _from_worker(self, subject: str, message: bytes, _: str) -> None:
        pipe = self._by_inbox.get(subject)
        if pipe is None:
            return
        if not message and pipe.link:
            pipe.link.lose(Disconnected("the worker no longer listens"))
            return
        pipe.read(message)

    def _on_state(self, connected: bool) -> None:
        if connected:
            return
        for pipe in (*self._inbound.values(), *self._by_inbox.values()):
            if pipe.link:
                pipe.link.lose(Disconnected(f"the connection to NATS at {self._nats.config.where} broke"))

    def channel(self, instance: Instance) -> LinkChannel:
        return LinkChannel(self._pool, instance.address, instance_path(instance))

    def link_rows(self) -> Iterator[dict[str, Any]]:
        pipes = [(pipe, "from a client") for pipe in self._inbound.values()]
        pipes += [(pipe, "to a worker") for pipe in self._by_inbox.values()]
        for pipe, side in pipes:
            if pipe.link:
                yield pipe.link.row(side)

    async def _connect(self, subject: str) -> ClientLink:
        if not self._nats.connected:
            raise Unavailable(f"not connected to NATS at {self._nats.config.where}")
        self._links += 1
        inbox = f"dynamo.streams.{self._id}.{self._links}"
        pipe = Pipe(self._nats, subject, inbox)
        link = ClientLink(pipe.write, subject, token=self._token, beat=BEAT_SECONDS)
        pipe.link = link
        self._by_inbox[inbox] = pipe
        link.when_lost(lambda: self._by_inbox.pop(inbox, None))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await link.greeted
        except TimeoutError as error:
            link.lose(Disconnected("no answer to hello"))
            raise CannotConnect(f"no answer from {subject}") from error
        return link

    async def close(self) -> None:
        self._forget_state()
        await self._pool.close()
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        for pipe in (*self._inbound.values(), *self._by_inbox.values()):
            if pipe.link:
                pipe.link.lose(Disconnected("the runtime was shut down"))
