from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest
import zmq

from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore
from dynamo.runtime.events import EventPlaneError, ZmqEventPlane
from dynamo.runtime.events import zmq as zmq_events
from dynamo.runtime.events.channel import MAX_TOPICS
from dynamo.runtime.events.zmq import CHANNELS, EventChannel
from support.services import free_port
from support.waiting import PATIENCE, until


class Cluster:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.discovery = MemoryDiscovery(self.store)

    @asynccontextmanager
    async def plane(self, host: str = "127.0.0.1", token: str | None = None) -> AsyncIterator[ZmqEventPlane]:
        plane = ZmqEventPlane(MemoryDiscovery(self.store), host, token=token)
        await plane.start()
        try:
            yield plane
        finally:
            await plane.close()

    async def addresses(self) -> list[str]:
        records = await self.discovery.get_prefix(CHANNELS)
        return [msgspec.msgpack.decode(value, type=EventChannel).address for value in records.values()]

    async def register(self, name: str, address: str) -> None:
        await self.discovery.put(CHANNELS + name, msgspec.msgpack.encode(EventChannel(address)))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def foreign(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    foreigner = context.socket(kind)
    foreigner.setsockopt(zmq.LINGER, 0)
    return foreigner


async def sent_until_heard(send: list[list[bytes]], publisher: zmq.Socket[bytes], heard: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        while not heard.is_set():
            for frames in send:
                publisher.send_multipart(frames)
            await asyncio.sleep(0.005)


async def published_until(plane: ZmqEventPlane, subject: str, heard: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        while not heard.is_set():
            plane.publish(subject, b"")
            await asyncio.sleep(0.005)


@contextmanager
def no_more_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_publisher_that_comes_while_no_file_can_be_opened_is_heard_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zmq_events, "RETRY_SECONDS", 0.01)
    async with cluster.plane() as listener, cluster.plane() as publisher:
        heard = asyncio.Event()
        await listener.subscribe("a.b", lambda _, data: heard.set())
        publisher.publish("a.b", b"")  # opens its channel at once, and tells of it later
        with no_more_open_files():
            await until(lambda: "Too many open files" in caplog.text)
        await published_until(publisher, "a.b", heard)


GARBAGE = [
    [b""],
    [b"a.b"],
    [b"a.b", b"\x00" * 8],
    [b"a.b", b"\x00" * 7, b"data"],
    [b"a.b", b"\x00" * 9, b"data"],
    [b"a.b", b"\x00" * 8, b"data", b"more"],
    [b"\xff\xfe", b"\x00" * 8, b"data"],
    [b"a b", b"\x00" * 8, b"data"],
    [b"", b"\x00" * 8, b"data"],
    [b"\x00", b"\x00" * 8, b""],
    [b"\x00" + b"x" * 16, b"\x00" * 8, b""],
    [b"a.>", b"\x00" * 8, b"data"],
]


async def test_garbage_of_a_foreign_publisher_is_ignored(
    cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    async with cluster.plane() as plane:
        events, heard = [], asyncio.Event()

        def callback(subject: str, data: bytes) -> None:
            events.append((subject, data))
            heard.set()

        await plane.subscribe(">", callback)
        publisher = foreign(context, zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        await cluster.register("foreign", f"tcp://127.0.0.1:{port}")
        await sent_until_heard([*GARBAGE, [b"a.b", (1).to_bytes(8, "big"), b"good"]], publisher, heard)
        assert set(events) == {("a.b", b"good")}
        publisher.close()


async def test_more_subjects_than_are_remembered_still_arrive(
    cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    async with cluster.plane() as plane:
        heard, last = asyncio.Event(), asyncio.Event()
        await plane.subscribe("a", lambda *_: heard.set())
        await plane.subscribe(">", lambda subject, _: last.set() if subject == "last" else None)
        publisher = foreign(context, zmq.PUB)
        publisher.setsockopt(zmq.SNDHWM, 0)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        await cluster.register("foreign", f"tcp://127.0.0.1:{port}")
        await sent_until_heard([[b"a", bytes(8), b""]], publisher, heard)
        for number in range(MAX_TOPICS + 10):
            publisher.send_multipart([b"many.%d" % number, bytes(8), b""])
        await sent_until_heard([[b"last", bytes(8), b""]], publisher, last)
        publisher.close()


async def test_garbage_from_a_foreign_subscriber_is_ignored(
    cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_events, "JOIN_SECONDS", PATIENCE)
    async with cluster.plane() as publisher, cluster.plane() as subscriber:
        heard = asyncio.Event()
        await subscriber.subscribe("a", lambda *_: heard.set())
        await published_until(publisher, "a", heard)
        (address,) = await cluster.addresses()
        stranger = foreign(context, zmq.XSUB)
        stranger.connect(address)
        for frame in (b"", b"\x01", b"\x00", b"\x02junk", b"\x01\x00", b"\x01\x00" + b"n" * 17, b"\x00\x00gone"):
            stranger.send(frame)
        stranger.send_multipart([b"\x01\x00" + b"n" * 16, b"more"])
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        _, raw = await asyncio.open_connection(host, int(port))
        raw.write(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(2000))
        heard.clear()
        await published_until(publisher, "a", heard)
        heard.clear()
        again = await subscriber.subscribe("a", lambda *_: heard.set())
        publisher.publish("a", b"")
        async with asyncio.timeout(PATIENCE):
            await heard.wait()
        again.unsubscribe()
        raw.close()
        stranger.close()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"adress": "tcp://127.0.0.1:1"}),
        msgspec.msgpack.encode({"address": 7}),
        msgspec.msgpack.encode({"address": "127.0.0.1:1"}),
        msgspec.msgpack.encode({"address": "tcp://"}),
        msgspec.msgpack.encode({"address": "tcp://127.0.0.1:port"}),
        msgspec.msgpack.encode({"address": "ipc:///etc/passwd"}),
    ],
)
async def test_a_bad_record_is_ignored_with_a_warning(
    cluster: Cluster, record: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.discovery.put(CHANNELS + "bad", record)
    async with cluster.plane() as publisher, cluster.plane() as subscriber:
        heard = asyncio.Event()
        await subscriber.subscribe("a", lambda *_: heard.set())
        await published_until(publisher, "a", heard)
    assert f"ignoring the event channel {CHANNELS}bad" in caplog.text


async def test_a_registered_but_dead_publisher_only_delays_subscribe(cluster: Cluster) -> None:
    await cluster.register("dead", f"tcp://127.0.0.1:{free_port()}")
    async with cluster.plane() as publisher, cluster.plane() as subscriber:
        heard = asyncio.Event()
        async with asyncio.timeout(PATIENCE):
            await subscriber.subscribe("a", lambda *_: heard.set())
        await published_until(publisher, "a", heard)


async def test_a_cancelled_subscribe_leaves_no_subscription(cluster: Cluster) -> None:
    await cluster.register("dead", f"tcp://127.0.0.1:{free_port()}")
    async with cluster.plane() as publisher, cluster.plane() as subscriber:
        subscribing = asyncio.create_task(subscriber.subscribe("a", lambda *_: pytest.fail("cancelled")))
        await asyncio.sleep(0)
        subscribing.cancel()
        await asyncio.gather(subscribing, return_exceptions=True)
        assert subscribing.cancelled()
        heard = asyncio.Event()
        await subscriber.subscribe("b", lambda *_: heard.set())
        await published_until(publisher, "b", heard)
        publisher.publish("a", b"")
        heard.clear()
        await published_until(publisher, "b", heard)


async def test_publishers_that_leave_free_their_sockets_and_newcomers_are_heard(cluster: Cluster) -> None:
    async with cluster.plane() as subscriber:
        own = asyncio.Event()
        await subscriber.subscribe("own", lambda *_: own.set())
        await published_until(subscriber, "own", own)  # ZMQ opens its own descriptors with its first socket
        (address,) = await cluster.addresses()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            heard = asyncio.Event()
            subscription = await subscriber.subscribe("a", lambda *_, heard=heard: heard.set())
            async with cluster.plane() as publisher:
                await published_until(publisher, "a", heard)
            subscription.unsubscribe()
        assert await cluster.addresses() == [address]
        # ZMQ closes its sockets in a thread of its own and tells nobody.
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_events_that_do_not_arrive_are_counted(
    cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.plane() as subscriber:
        numbered, heard, last = iter(range(1, 1_000_000)), asyncio.Event(), asyncio.Event()
        await subscriber.subscribe("a", lambda _, data: last.set() if data else heard.set())
        publisher = foreign(context, zmq.PUB)
        await cluster.register("foreign", f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}")
        async with asyncio.timeout(PATIENCE):
            while not heard.is_set():
                publisher.send_multipart([b"a", next(numbered).to_bytes(8, "big"), b""])
                await asyncio.sleep(0.005)
        assert subscriber.lost == 0
        [next(numbered) for _ in range(7)]
        publisher.send_multipart([b"a", next(numbered).to_bytes(8, "big"), b"last"])
        async with asyncio.timeout(PATIENCE):
            await last.wait()
        assert subscriber.lost == 7
        publisher.close()
    assert caplog.text.count("events are lost") == 1


async def test_unsubscribing_for_a_while_is_no_loss(cluster: Cluster) -> None:
    async with cluster.plane() as publisher, cluster.plane() as subscriber:
        heard = asyncio.Event()
        first = await subscriber.subscribe("a", lambda *_: heard.set())
        await published_until(publisher, "a", heard)
        first.unsubscribe()
        for _ in range(10):
            publisher.publish("a", b"")
        heard.clear()
        await subscriber.subscribe("a", lambda *_: heard.set())
        await published_until(publisher, "a", heard)
        assert subscriber.lost == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "::1", "::"])
async def test_the_registered_address_is_reachable_whatever_the_host(cluster: Cluster, host: str) -> None:
    async with cluster.plane(host) as publisher, cluster.plane() as subscriber:
        heard = asyncio.Event()
        await subscriber.subscribe("a", lambda *_: heard.set())
        await published_until(publisher, "a", heard)
        (address,) = await cluster.addresses()
        assert "0.0.0.0" not in address
        assert "[::]" not in address


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "two words"])
async def test_a_host_that_is_not_this_machine_fails_the_start(cluster: Cluster, host: str) -> None:
    with pytest.raises(EventPlaneError, match="DYN_EVENT_PLANE_HOST"):
        await ZmqEventPlane(cluster.discovery, host).start()


async def test_a_plane_that_is_not_started_refuses_subscribers(cluster: Cluster) -> None:
    with pytest.raises(EventPlaneError, match="not started"):
        await ZmqEventPlane(cluster.discovery).subscribe("a", lambda *_: None)


async def test_a_plane_that_never_publishes_registers_nothing_and_listens_nowhere(cluster: Cluster) -> None:
    async with cluster.plane() as plane:
        await plane.subscribe("a", lambda *_: None)
        assert await cluster.addresses() == []


async def test_with_a_token_events_arrive_encrypted(cluster: Cluster) -> None:
    got: list[bytes] = []
    async with cluster.plane(token="secret") as publisher, cluster.plane(token="secret") as subscriber:
        await publisher.announce()
        await subscriber.subscribe("a.b", lambda _, data: got.append(data))
        publisher.publish("a.b", b"1")
        await until(lambda: got == [b"1"])


@pytest.mark.parametrize("token", ["another", None])
async def test_without_the_token_nothing_is_heard(
    cluster: Cluster, context: zmq.Context[zmq.Socket[bytes]], token: str | None
) -> None:
    got: list[bytes] = []
    strange: list[bytes] = []
    async with cluster.plane(token="secret") as publisher, cluster.plane(token="secret") as friend:
        await publisher.announce()
        (address,) = await cluster.addresses()
        async with cluster.plane(token=token) as stranger:
            await stranger.subscribe(">", lambda _, data: strange.append(data))
            plain = foreign(context, zmq.SUB)
            plain.connect(address)
            plain.subscribe("")
            await friend.subscribe(">", lambda _, data: got.append(data))
            for number in range(20):
                publisher.publish("a.b", b"%d" % number)
            await until(lambda: len(got) == 20)
            with pytest.raises(zmq.Again):
                plain.recv(zmq.NOBLOCK)
            plain.close()
            assert strange == []


async def test_a_publisher_without_the_token_is_named_and_ignored(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.plane() as publisher, cluster.plane(token="secret") as subscriber:
        await publisher.announce()
        await subscriber.subscribe(">", lambda _, data: None)
        assert "has no plane token; DYN_PLANE_TOKEN must be equal on all" in caplog.text
