"""What every event plane does, whatever carries the events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore
from dynamo.runtime.events import EventPlane, EventPlaneConfig, EventPlaneError, MemoryBus, event_plane
from dynamo.runtime.events import zmq as zmq_events
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.nats.connection import NatsConnection
from support.services import Nats
from support.waiting import PATIENCE, until

Event = tuple[str, bytes]
MakePlane = Callable[[], Awaitable[EventPlane]]


@pytest.fixture(params=["memory", "zmq", "nats"])
async def make_plane(
    request: pytest.FixtureRequest, shared_nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakePlane]:
    """Planes of one cluster, each as if in a process of its own."""
    # Every publisher here is alive, so `subscribe` may wait for each of them, however busy the machine is.
    monkeypatch.setattr(zmq_events, "JOIN_SECONDS", PATIENCE)
    bus, store = MemoryBus(), MemoryStore()
    async with AsyncExitStack() as stack:

        async def make() -> EventPlane:
            discovery = MemoryDiscovery(store)
            stack.push_async_callback(discovery.close)
            connection = None
            if request.param == "nats":
                connection = NatsConnection(NatsConfig(servers=(shared_nats.url,)))
                await connection.start()
                stack.push_async_callback(connection.close)
            plane = event_plane(EventPlaneConfig(kind=request.param), discovery, nats=connection, bus=bus)
            await plane.start()
            stack.push_async_callback(plane.close)
            return plane

        yield make


@pytest.fixture
def root() -> str:
    """A namespace of the test's own: the NATS server is shared."""
    return f"namespace.{uuid4().hex}"


class Inbox:
    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    def __call__(self, subject: str, data: bytes) -> None:
        self.events.put_nowait((subject, data))

    async def take(self, count: int = 1) -> list[Event]:
        async with asyncio.timeout(PATIENCE):
            return [await self.events.get() for _ in range(count)]


async def introduce(publisher: EventPlane, subscriber: EventPlane, root: str) -> None:
    """Publish until the subscriber hears it: from then on the publisher is known."""
    heard = asyncio.Event()
    subject = f"{root}.introduction-{uuid4().hex}"
    subscription = await subscriber.subscribe(subject, lambda *_: heard.set())
    async with asyncio.timeout(PATIENCE):
        while not heard.is_set():
            publisher.publish(subject, b"")
            await asyncio.sleep(0.001)
    subscription.unsubscribe()


async def test_an_exact_subject_gets_its_own_events_only(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, inbox = await make_plane(), await make_plane(), Inbox()
    await introduce(publisher, subscriber, root)
    await subscriber.subscribe(f"{root}.load", inbox)
    for subject in ("loads", "load.more", "lo", "load"):
        publisher.publish(f"{root}.{subject}", subject.encode())
    assert await inbox.take() == [(f"{root}.load", b"load")]


async def test_a_prefix_gets_everything_deeper(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, inbox, everything = await make_plane(), await make_plane(), Inbox(), Inbox()
    await introduce(publisher, subscriber, root)
    await subscriber.subscribe(f"{root}.component.>", inbox)

    def unless_introduction(subject: str, data: bytes) -> None:
        if "introduction" not in subject:
            everything(subject, data)

    await subscriber.subscribe(">", unless_introduction)
    for subject in ("component", "components.a", "component.a", "component.a.b"):
        publisher.publish(f"{root}.{subject}", b"\x00\xff")
    assert await inbox.take(2) == [(f"{root}.component.a", b"\x00\xff"), (f"{root}.component.a.b", b"\x00\xff")]
    assert (await everything.take(4))[0] == (f"{root}.component", b"\x00\xff")


async def test_what_is_published_right_after_subscribe_returned_arrives(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber = await make_plane(), await make_plane()
    await introduce(publisher, subscriber, root)
    for number in range(20):
        inbox = Inbox()
        await subscriber.subscribe(f"{root}.{number}", inbox)
        publisher.publish(f"{root}.{number}", b"first")
        assert await inbox.take() == [(f"{root}.{number}", b"first")]


async def test_a_plane_that_joins_later_hears_known_publishers_at_once(make_plane: MakePlane, root: str) -> None:
    publisher = await make_plane()
    await introduce(publisher, await make_plane(), root)
    inbox, late = Inbox(), await make_plane()
    await late.subscribe(f"{root}.late", inbox)
    publisher.publish(f"{root}.late", b"first")
    assert await inbox.take() == [(f"{root}.late", b"first")]


async def test_the_first_event_of_a_publisher_that_announced_itself_is_heard(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, inbox = await make_plane(), await make_plane(), Inbox()
    await publisher.announce()
    await subscriber.subscribe(f"{root}.a", inbox)
    publisher.publish(f"{root}.a", b"first")
    assert await inbox.take() == [(f"{root}.a", b"first")]


async def test_every_subscriber_hears_every_publisher_in_order(make_plane: MakePlane, root: str) -> None:
    publishers = [await make_plane() for _ in range(3)]
    subscribers = [await make_plane() for _ in range(2)]
    for publisher in publishers:
        for subscriber in subscribers:
            await introduce(publisher, subscriber, root)
    inboxes = [Inbox() for _ in range(4)]
    for number, inbox in enumerate(inboxes):
        await subscribers[number % 2].subscribe(f"{root}.order", inbox)
    for number in range(500):
        for who, publisher in enumerate(publishers):
            publisher.publish(f"{root}.order", bytes([who]) + number.to_bytes(2, "big"))
    for inbox in inboxes:
        events = [data for _, data in await inbox.take(1500)]
        for who in range(3):
            assert [int.from_bytes(data[1:], "big") for data in events if data[0] == who] == list(range(500))


async def test_a_plane_hears_itself(make_plane: MakePlane, root: str) -> None:
    plane = await make_plane()
    await introduce(plane, plane, root)


async def test_a_burst_larger_than_one_turn_of_the_loop_arrives_whole(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, inbox = await make_plane(), await make_plane(), Inbox()
    await introduce(publisher, subscriber, root)
    await subscriber.subscribe(f"{root}.burst", inbox)
    for number in range(5000):
        publisher.publish(f"{root}.burst", str(number).encode())
    assert [int(data) for _, data in await inbox.take(5000)] == list(range(5000))


async def test_after_unsubscribe_nothing_arrives(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, kept = await make_plane(), await make_plane(), Inbox()
    await introduce(publisher, subscriber, root)
    ended: list[Event] = []
    subscription = await subscriber.subscribe(f"{root}.>", lambda *event: ended.append(event))
    again = await subscriber.subscribe(f"{root}.a", lambda *event: ended.append(event))
    await subscriber.subscribe(f"{root}.a", kept)
    subscription.unsubscribe()
    subscription.unsubscribe()
    again.unsubscribe()
    publisher.publish(f"{root}.a", b"1")
    publisher.publish(f"{root}.b", b"2")
    publisher.publish(f"{root}.a", b"3")
    assert [data for _, data in await kept.take(2)] == [b"1", b"3"]
    assert ended == []


async def test_a_subscriber_may_unsubscribe_while_it_is_called(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, last = await make_plane(), await make_plane(), Inbox()
    await introduce(publisher, subscriber, root)
    once: list[bytes] = []

    def callback(subject: str, data: bytes) -> None:
        once.append(data)
        subscription.unsubscribe()

    subscription = await subscriber.subscribe(f"{root}.once", callback)
    await subscriber.subscribe(f"{root}.once", last)
    publisher.publish(f"{root}.once", b"1")
    publisher.publish(f"{root}.once", b"2")
    await last.take(2)
    assert once == [b"1"]


async def test_a_failing_subscriber_harms_no_other(
    make_plane: MakePlane, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, subscriber, inbox = await make_plane(), await make_plane(), Inbox()
    await introduce(publisher, subscriber, root)
    await subscriber.subscribe(f"{root}.fails", lambda *_: [][0])
    await subscriber.subscribe(f"{root}.fails", inbox)
    publisher.publish(f"{root}.fails", b"1")
    publisher.publish(f"{root}.fails", b"2")
    await inbox.take(2)
    assert f"{root}.fails failed" in caplog.text


async def test_close_leaves_no_task_and_no_descriptor(make_plane: MakePlane, root: str) -> None:
    other = await make_plane()
    plane = await make_plane()
    await plane.close()
    await introduce(other, other, root)
    before = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
    plane = await make_plane()
    opened = asyncio.all_tasks() - before[0], len(os.listdir("/proc/self/fd"))
    await plane.subscribe(f"{root}.>", lambda *_: None)
    await introduce(plane, plane, root)
    await plane.close()
    await plane.close()
    assert asyncio.all_tasks() - before[0] <= opened[0]  # a NATS connection is not the plane's to close
    # ZMQ closes its sockets in a thread of its own and tells nobody.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= opened[1])
    plane.publish(f"{root}.a", b"into the void")


async def test_after_close_no_callback_runs(make_plane: MakePlane, root: str) -> None:
    publisher, subscriber, other, inbox = await make_plane(), await make_plane(), await make_plane(), Inbox()
    await introduce(publisher, subscriber, root)
    await introduce(publisher, other, root)
    await subscriber.subscribe(f"{root}.a", lambda *_: pytest.fail("closed"))
    await other.subscribe(f"{root}.a", inbox)
    await subscriber.close()
    publisher.publish(f"{root}.a", b"1")
    await inbox.take()


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "a b", "a.>", ">", "*", "a.*", "é", "a\n", "\x00a"])
async def test_publishing_on_what_is_no_subject_is_refused(make_plane: MakePlane, subject: str) -> None:
    plane = await make_plane()
    with pytest.raises(EventPlaneError, match="is not an event subject"):
        plane.publish(subject, b"")


@pytest.mark.parametrize("pattern", ["", ".", "a.", ".>", "a>", "a.>.b", "a.*", "a b", ">.>", "é.>", "a\r\n.>"])
async def test_subscribing_to_what_is_no_pattern_is_refused(make_plane: MakePlane, pattern: str) -> None:
    plane = await make_plane()
    with pytest.raises(EventPlaneError, match="neither an event subject nor"):
        await plane.subscribe(pattern, lambda *_: None)
