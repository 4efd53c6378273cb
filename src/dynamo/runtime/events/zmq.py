"""Events straight from publisher to subscriber over ZMQ, the default: no service in between.

A process that publishes registers the address of its one channel with Discovery under `v1/event_channels/<id>`; a
process that subscribes watches those records and connects to each, its own included.

What is guaranteed: `subscribe` returns when every publisher registered by then has confirmed the subscription, so
what they publish next arrives (unless the channel overflows or breaks). It waits `JOIN_SECONDS` at most, because a
registered publisher may be dead. What a publisher sends before a subscriber has found and reached it is lost to that
subscriber; a publisher that has not announced itself opens its channel with the first event, which is lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import aclosing, suppress
from functools import partial
from ipaddress import ip_address

import msgspec
import zmq

from dynamo.process.addresses import LOOPBACK, own_address
from dynamo.runtime.discovery.base import Delete, Discovery, DiscoveryError, Put, Synced
from dynamo.runtime.events.base import Callback, EventPlaneError, Subscribers, Subscription, check_subject
from dynamo.runtime.events.channel import Doorkeeper, PublishingEnd, SubscribingEnd, channel_address
from dynamo.runtime.events.curve import CurveKeys

logger = logging.getLogger(__name__)

CHANNELS = "v1/event_channels/"
JOIN_SECONDS = 1.0
RETRY_SECONDS = 1.0
"""Pause before connecting again to a publisher for which no socket could be opened."""
MAX_SOCKETS = 16_384


class EventChannel(msgspec.Struct, frozen=True):
    """The record of a publisher."""

    address: str
    curve: bool = False
    """Only processes with the plane's token can connect."""


class ZmqEventPlane:
    """`lost` counts events that were sent while subscribed and did not arrive."""

    def __init__(
        self, discovery: Discovery, host: str = LOOPBACK, peers: Sequence[str] = (), token: str | None = None
    ) -> None:
        self.lost = 0
        self._discovery = discovery
        self._host = host
        self._peers = peers
        self._keys = CurveKeys.derive(token) if token else None
        self._doorkeeper: Doorkeeper | None = None
        self._key = CHANNELS + secrets.token_hex(8)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._subscribers = Subscribers()
        self._prefixes: list[str] = []
        self._channels: dict[str, SubscribingEnd] = {}
        self._unconnected: dict[str, bytes] = {}
        """Records of publishers for which no socket could be opened."""
        self._retry_timer: asyncio.TimerHandle | None = None
        self._synced = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._publishing: PublishingEnd | None = None
        self._announcing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._host, self._reachable = await _addresses(self._host, self._peers)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        if self._keys:
            self._doorkeeper = Doorkeeper(self._context, self._keys)

    async def announce(self) -> None:
        self._open()
        if self._announcing:
            await asyncio.shield(self._announcing)

    def publish(self, subject: str, data: bytes) -> None:
        if self._publishing is None:
            check_subject(subject)
        if channel := self._open():
            channel.send(subject, data)

    def _open(self) -> PublishingEnd | None:
        if self._publishing is None and self._context is not None:
            self._publishing = PublishingEnd(self._context, self._host, self._keys)
            self._announcing = asyncio.create_task(self._announce(self._publishing.port))
        return self._publishing

    async def subscribe(self, subject: str, callback: Callback) -> Subscription:
        if self._context is None:
            raise EventPlaneError("this event plane is not started, or closed")
        subscription = self._subscribers.add(subject, callback)
        prefix = subscription.prefix
        subscription.on_end = partial(self._ignore, prefix)
        self._prefixes.append(prefix)
        for channel in self._channels.values():
            channel.listen(prefix)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._context))
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                await self._synced.wait()
                await asyncio.gather(*[channel.join() for channel in self._channels.values()])
        except TimeoutError:
            logger.debug("not every publisher has confirmed the subscription to %s", subject)
        except BaseException:
            subscription.unsubscribe()
            raise
        return subscription

    async def close(self) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        tasks = [task for task in (self._watching, self._announcing) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._retry_timer:
            self._retry_timer.cancel()
        self._subscribers.clear()
        for key in tuple(self._channels):
            self._disconnect(key)
        if self._publishing:
            with suppress(DiscoveryError, TimeoutError):
                async with asyncio.timeout(JOIN_SECONDS):
                    await self._discovery.delete(self._key)
            self._publishing.close()
            self._publishing = None
        if self._doorkeeper:
            self._doorkeeper.close()
        context.term()

    async def _announce(self, port: int) -> None:
        record = EventChannel(channel_address(self._reachable, port), self._keys is not None)
        try:
            await self._discovery.put(self._key, msgspec.msgpack.encode(record))
        except DiscoveryError as error:
            logger.error("other processes cannot find the events of this one: %s", error)

    async def _watch(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        try:
            async with aclosing(self._discovery.watch(CHANNELS)) as changes:
                async for change in changes:
                    match change:
                        case Put(key, value):
                            self._connect_to(context, key, value)
                        case Delete(key):
                            self._unconnected.pop(key, None)
                            self._disconnect(key)
                        case Synced():
                            self._synced.set()
        except DiscoveryError as error:
            logger.error("new publishers of events will not be found: %s", error)

    def _connect_to(self, context: zmq.Context[zmq.Socket[bytes]], key: str, value: bytes) -> None:
        try:
            record = msgspec.msgpack.decode(value, type=EventChannel)
            address = record.address
            known = self._channels.get(key)
            if known and known.address == address:
                return
            self._disconnect(key)
            if not address.startswith("tcp://"):
                raise EventPlaneError(f"{address!r} is not a tcp:// address")
            if record.curve != (self._keys is not None):
                who = "this process" if record.curve else f"the publisher at {address}"
                raise EventPlaneError(f"{who} has no plane token; DYN_PLANE_TOKEN must be equal on all")
            self._channels[key] = SubscribingEnd(
                context, address, self._prefixes, self._subscribers.deliver, self._missed, self._keys
            )
            self._unconnected.pop(key, None)
        except zmq.ZMQError as error:
            if not self._unconnected:
                logger.warning("cannot listen to %s, and will try again: %s", address, error)
            self._unconnected[key] = value
            if self._retry_timer is None:
                self._retry_timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry, context)
        except (msgspec.DecodeError, EventPlaneError) as error:
            logger.warning("ignoring the event channel %s: %s", key, error)

    def _retry(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._retry_timer = None
        for key, value in tuple(self._unconnected.items()):
            self._connect_to(context, key, value)

    def _disconnect(self, key: str) -> None:
        channel = self._channels.pop(key, None)
        if channel:
            channel.close()

    def _ignore(self, prefix: str) -> None:
        self._prefixes.remove(prefix)
        for channel in self._channels.values():
            channel.ignore(prefix)

    def _missed(self, count: int) -> None:
        if not self.lost:
            logger.warning("events are lost on the way here; further losses are only counted")
        self.lost += count


async def _addresses(host: str, peers: Sequence[str]) -> tuple[str, str]:
    """The numeric address to listen on, and the one by which other machines reach it."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(where)
    except OSError as error:
        raise EventPlaneError(
            f"cannot publish events from {host!r}: {error.strerror or error}; set DYN_EVENT_PLANE_HOST to an address "
            "of this machine that the routers reach"
        ) from error
    address = str(where[0])
    return address, own_address(peers, family) if ip_address(address).is_unspecified else address
