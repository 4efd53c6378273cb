"""Listens to an engine that publishes its KV events over ZMQ, as vLLM and SGLang do.

The engine numbers its batches. A missing batch is requested from the engine's replay endpoint. If there is none, or it
no longer has the batch, and whenever the connection is lost, all blocks of the engine are withdrawn: an index may know
too little, never too much.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import zmq
import zmq.asyncio

from dynamo.kv.publish.engine_events import EngineBatch, MalformedEvents, decode_batch, decode_sequence
from dynamo.kv.publish.translate import EngineRank
from dynamo.runtime import Component
from dynamo.runtime.metrics import Metric

log = logging.getLogger(__name__)

REPLAY_SECONDS = 5.0
"""How long to wait for each batch of a replay."""
BATCH = 100
"""Batches handled before the event loop gets a turn."""
HIGH_WATER = 100_000

_ADDRESS = re.compile(r"tcp://.+:\d+|ipc://.+")


def engine_address(name: str, address: str) -> str:
    """The address to connect to, given the one an engine binds: its `*` is this machine."""
    address = address.replace("*", "127.0.0.1")
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{name} must be a ZMQ address such as tcp://127.0.0.1:5557, not {address!r}")
    return address


def listen(
    component: Component, rank: EngineRank, address: str, topic: str = "", replay_address: str | None = None
) -> asyncio.Task[None]:
    """Publish what an engine publishes at `address`, until the task is cancelled or the runtime ends."""
    address = engine_address("zmq_endpoint", address)
    replay = engine_address("zmq_replay_endpoint", replay_address) if replay_address else None
    listener = EngineListener(rank, address, topic, replay, dropped_events(component).count)
    return component.runtime.own(listener.run(), f"listening to KV events at {address}")


class EngineListener:
    def __init__(
        self,
        rank: EngineRank,
        address: str,
        topic: str = "",
        replay_address: str | None = None,
        on_dropped: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_dropped` is called with the number of batches that are lost for good."""
        self._rank = rank
        self._on_dropped = on_dropped
        self._address = address
        self._topic = topic
        self._replay_address = replay_address
        self._next: int | None = None
        """The number of the next batch; None while nothing is known of the engine."""

    async def run(self) -> None:
        """Listen until cancelled, or until publishing was stopped because of the engine's block size."""
        context = zmq.asyncio.Context()
        events = context.socket(zmq.SUB)
        try:
            events.setsockopt(zmq.RCVHWM, HIGH_WATER)
            events.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            monitor = events.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            events.connect(self._address)
            events.subscribe(self._topic)
            poller = zmq.asyncio.Poller()
            for socket in (events, monitor):
                poller.register(socket, zmq.POLLIN)
            while not self._rank.stopped:
                ready: dict[Any, int] = dict(await poller.poll())
                await self._drain(context, events)
                if monitor in ready:
                    # Only after the batches that arrived before the connection ended.
                    await monitor.recv_multipart()
                    self._lost_connection()
        finally:
            events.disable_monitor()
            context.destroy(linger=0)

    async def _drain(self, context: zmq.asyncio.Context, events: zmq.asyncio.Socket) -> None:
        taken = 0
        while not self._rank.stopped:
            try:
                frames = await events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                await self._receive(context, frames)
            except Exception:
                log.exception("handling KV events of the engine at %s failed; forgetting its blocks", self._address)
                self._forget()
            taken += 1
            if taken % BATCH == 0:
                await asyncio.sleep(0)

    async def _receive(self, context: zmq.asyncio.Context, frames: list[bytes]) -> None:
        try:
            if len(frames) != 3:
                raise MalformedEvents(f"a message of {len(frames)} frames, not topic, number and batch")
            number = decode_sequence(frames[1])
            if number < 0:
                raise MalformedEvents(f"the batch number is {number}")
        except MalformedEvents as error:
            self._malformed(error)
            return
        if self._next is not None and number < self._next:
            log.warning("the engine at %s has restarted", self._address)
            self._forget()
        await self._catch_up(context, number)
        self._take(number, frames[2])

    def _take(self, number: int, payload: bytes) -> None:
        try:
            batch: EngineBatch = decode_batch(payload)
        except MalformedEvents as error:
            self._malformed(error)
        else:
            self._rank.take(batch)
        self._next = number + 1

    async def _catch_up(self, context: zmq.asyncio.Context, number: int) -> None:
        """Take the batches before this one that did not arrive."""
        start = self._next or 0
        if number == start:
            return
        missed = await self._replay(context, start, number)
        if not missed or missed[0][0] != start:
            if self._next is not None:
                log.warning(
                    "KV events %d to %d of the engine at %s are lost; forgetting its blocks",
                    start, number - 1 - len(missed), self._address,
                )  # fmt: skip
                self._on_dropped(number - start - len(missed))
            self._forget()
        for taken, (at, payload) in enumerate(missed, 1):
            self._take(at, payload)
            if taken % BATCH == 0:
                await asyncio.sleep(0)

    async def _replay(self, context: zmq.asyncio.Context, start: int, end: int) -> list[tuple[int, bytes]]:
        """The last unbroken run of batches from `start` on and before `end` that the engine still has."""
        found: list[tuple[int, bytes]] = []
        # An engine drops what its socket cannot hold of a long replay, so the rest is asked for again.
        while start < end and (batches := await self._ask(context, start, end)):
            if batches[0][0] != start:
                found = []
            unbroken = takewhile(lambda at: at[1][0] == batches[0][0] + at[0], enumerate(batches))
            found += [batch for _, batch in unbroken]
            start = found[-1][0] + 1
        return found if start == end else []

    async def _ask(self, context: zmq.asyncio.Context, start: int, end: int) -> list[tuple[int, bytes]]:
        """The batches of this range that one replay request returns."""
        if self._replay_address is None:
            return []
        found: list[tuple[int, bytes]] = []
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(self._replay_address)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            number = start - 1
            while number < end - 1:
                async with asyncio.timeout(REPLAY_SECONDS):
                    frames = await socket.recv_multipart()
                if len(frames) < 2 or (number := decode_sequence(frames[-2])) < 0:
                    break
                if start <= number < end:
                    found.append((number, frames[-1]))
        except (TimeoutError, MalformedEvents, zmq.ZMQError) as error:
            log.warning("the engine's replay at %s failed: %s", self._replay_address, error or type(error).__name__)
        finally:
            socket.close(linger=0)
        return found

    def _lost_connection(self) -> None:
        log.warning("lost the engine's KV events at %s; forgetting its blocks until it is back", self._address)
        self._forget()

    def _malformed(self, error: MalformedEvents) -> None:
        self._rank.rejected(str(error))
        self._forget()

    def _forget(self) -> None:
        self._rank.forget()
        self._next = None


class DroppedEvents:
    """The batches of KV events that the ranks of one instance lost before this process took them."""

    def __init__(self) -> None:
        self.batches = 0

    def count(self, batches: int) -> None:
        self.batches += batches


_DROPPED: Metric[DroppedEvents] = Metric("counter", "dynamo_component_kv_publisher_engines_dropped_events_total",
    "Batches of KV events that are missing between two of an engine and could not be had again",
    lambda dropped: dropped.batches)  # fmt: skip


def dropped_events(component: Component) -> DroppedEvents:
    """The count of this runtime's instance of the component, created and shown on first use."""

    def create() -> DroppedEvents:
        dropped = DroppedEvents()
        if status := component.runtime.status:
            labels = {
                "dynamo_namespace": component.namespace,
                "dynamo_component": component.name,
                "worker_id": f"{component.runtime.instance_id:x}",
            }
            status.add_families(lambda: [_DROPPED.family([(labels, dropped)])])
        return dropped

    return component.runtime.shared((DroppedEvents, component.namespace, component.name), create)
