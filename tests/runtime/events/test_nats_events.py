from __future__ import annotations

import asyncio

import pytest

from dynamo.runtime.events import NatsEventPlane
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.nats.connection import NatsConnection
from support.services import Nats
from support.waiting import PATIENCE


async def test_events_of_an_outage_are_dropped_counted_and_mentioned_once(
    nats: Nats, caplog: pytest.LogCaptureFixture
) -> None:
    connection = NatsConnection(NatsConfig(servers=(nats.url,)))
    await connection.start()
    plane = NatsEventPlane(connection)
    await plane.start()
    states: asyncio.Queue[bool] = asyncio.Queue()
    connection.on_state(states.put_nowait)
    received: asyncio.Queue[bytes] = asyncio.Queue()
    await plane.subscribe("a.>", lambda _, data: received.put_nowait(data))
    async with asyncio.timeout(PATIENCE):
        for outage in range(1, 3):
            nats.stop()
            assert await states.get() is False
            for _ in range(3):
                plane.publish("a.b", b"lost")
            assert plane.dropped == 3 * outage
            during = await plane.subscribe("a.b", lambda _, data: received.put_nowait(data))
            nats.start()
            assert await states.get() is True
            plane.publish("a.b", b"heard")
            assert [await received.get(), await received.get()] == [b"heard", b"heard"]
            during.unsubscribe()
    assert caplog.text.count("events are lost") == 2
    await plane.close()
    await connection.close()


async def test_an_event_larger_than_nats_takes_is_dropped(shared_nats: Nats) -> None:
    connection = NatsConnection(NatsConfig(servers=(shared_nats.url,)))
    await connection.start()
    plane = NatsEventPlane(connection)
    await plane.start()
    plane.publish("too.large", bytes(connection.max_payload + 1))
    assert plane.dropped == 1
    assert connection.connected
    await plane.close()
    await connection.close()
