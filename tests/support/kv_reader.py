"""What a plain reader of KV events knows, and an engine that speaks vLLM's and SGLang's KV events over real sockets."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Literal

import msgspec
import zmq
import zmq.asyncio

from dynamo.kv.messages import Cleared, KvSnapshot, Removed, RouterEvent, RouterEventBatch, Stored, Tier
from dynamo.runtime import DistributedRuntime
from support.waiting import PATIENCE, until

Blocks = set[tuple[Tier, int]]
"""Sequence hashes, each with the tier it lies in."""


class Reader:
    """Applies events in the plainest way, refusing gaps, unknown parents and changes that change nothing."""

    def __init__(self) -> None:
        self.messages: list[list[RouterEvent]] = []
        self.blocks: dict[tuple[int, int], Blocks] = {}
        """Per (worker, rank)."""
        self.last: dict[tuple[int, int], int] = {}
        self._arrived = asyncio.Event()
        self._refused: Exception | None = None

    async def listen(self, runtime: DistributedRuntime, component: str = "backend") -> Reader:
        await runtime.start()
        await runtime.events.subscribe(f"namespace.ns.component.{component}.kv-events", self._receive)
        return self

    def _receive(self, subject: str, data: bytes) -> None:
        batch = msgspec.msgpack.decode(data, type=RouterEventBatch)
        self.messages.append(batch.events)
        self._arrived.set()
        try:
            for event in batch.events:
                self.apply(event)
        except (AssertionError, LookupError) as error:
            self._refused = error

    def apply(self, event: RouterEvent) -> None:
        key = (event.worker_id, event.dp_rank)
        assert event.event_id == self.last.get(key, -1) + 1
        self.last[key] = event.event_id
        blocks = self.blocks.setdefault(key, set())
        match event.data:
            case Stored(hashes, parent):
                assert parent is None or any((tier, parent) in blocks for tier in Tier)
                stored = {(event.tier, block) for block in hashes}
                assert len(stored) == len(hashes)
                assert stored.isdisjoint(blocks)
                blocks |= stored
            case Removed(hashes):
                removed = {(event.tier, block) for block in hashes}
                assert len(removed) == len(hashes)
                assert removed <= blocks
                blocks -= removed
            case Cleared():
                blocks.clear()

    def take(self, snapshot: KvSnapshot) -> None:
        key = (snapshot.worker_id, snapshot.dp_rank)
        self.blocks[key] = content(snapshot)
        if snapshot.last_event_id is not None:
            self.last[key] = snapshot.last_event_id

    async def until(self, worker_id: int, event_id: int, dp_rank: int = 0) -> Blocks:
        """The rank's blocks once this event has been applied."""
        async with asyncio.timeout(PATIENCE):
            while not self._refused and self.last.get((worker_id, dp_rank), -1) < event_id:
                self._arrived.clear()
                await self._arrived.wait()
        if self._refused:
            raise self._refused
        return self.blocks[worker_id, dp_rank]


def content(snapshot: KvSnapshot) -> Blocks:
    return {(part.tier, block) for part in snapshot.tiers for block in part.sequence_hashes}


async def ask_snapshot(runtime: DistributedRuntime, worker_id: int, dp_rank: int = 0) -> KvSnapshot:
    client = await runtime.endpoint("ns.backend.kv_snapshot").client()
    async with asyncio.timeout(PATIENCE):
        await until(lambda: worker_id in client.instance_ids())
        stream = await client.direct({"worker_id": worker_id, "dp_rank": dp_rank}, worker_id, annotated=False)
        (snapshot,) = [item async for item in stream]
    return msgspec.convert(snapshot, KvSnapshot)


Form = Literal["map", "positional"]


class FakeEngine:
    """Publishes batches on a PUB socket, and remembers them for whoever asks its replay socket."""

    def __init__(self, form: Form = "map", *, signed: bool = False, block_size: int = 4) -> None:
        self.form = form
        self.signed = signed
        self.block_size = block_size
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self.address = self.bind("tcp://127.0.0.1:0")
        self._replay.bind("tcp://127.0.0.1:0")
        self.replay_address = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replayed_at_once: int | None = None
        """The rest of a longer replay is dropped, as vLLM's socket does."""
        self._remembered: list[tuple[int, bytes]] = []
        self._numbers = itertools.count()
        self._answering = asyncio.create_task(self._answer())

    def bind(self, address: str) -> str:
        self._socket.bind(address)
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def heard(self) -> None:
        """Wait until somebody listens."""
        async with asyncio.timeout(PATIENCE):
            while (await self._socket.recv_multipart())[0][:1] != b"\x01":
                pass

    async def restart(self) -> None:
        """A new engine at the same address, which knows nothing."""
        self._socket.close(linger=0)
        self._socket = self._context.socket(zmq.XPUB)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    self.bind(self.address)
                    break
                except zmq.ZMQError:
                    await asyncio.sleep(0.01)
        self._remembered.clear()
        self._numbers = itertools.count()
        await self.heard()

    def stored(self, hashes: list[int], tokens: list[int], parent: int | None = None, medium: str = "GPU") -> Any:
        names = [self._hash(name) for name in hashes]
        before = None if parent is None else self._hash(parent)
        if self.form == "positional":
            return ["BlockStored", names, before, tokens, self.block_size, None, medium]
        return {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": before,
            "token_ids": tokens,
            "block_size": self.block_size,
            "lora_id": None,
            "medium": medium,
        }

    def removed(self, hashes: list[int], medium: str = "GPU") -> Any:
        names = [self._hash(name) for name in hashes]
        if self.form == "positional":
            return ["BlockRemoved", names, medium]
        return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}

    def cleared(self) -> Any:
        return ["AllBlocksCleared"] if self.form == "positional" else {"type": "AllBlocksCleared"}

    async def say(self, *events: Any, lost: bool = False) -> None:
        """Publish one batch; a `lost` one never leaves, but is remembered."""
        await self.say_raw(msgspec.msgpack.encode([1.5, list(events), 0]), lost=lost)

    async def say_raw(self, payload: bytes, *, lost: bool = False) -> None:
        number = next(self._numbers)
        self._remembered.append((number, payload))
        if not lost:
            await self._socket.send_multipart([b"kv-events", number.to_bytes(8, "big", signed=True), payload])

    def count_from(self, number: int) -> None:
        self._numbers = itertools.count(number)

    def forget(self, count: int) -> None:
        del self._remembered[:count]

    async def close(self) -> None:
        self._answering.cancel()
        await asyncio.gather(self._answering, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _answer(self) -> None:
        while True:
            client, _, start = await self._replay.recv_multipart()
            asked = [batch for batch in self._remembered if batch[0] >= int.from_bytes(start, "big")]
            for number, payload in asked[: self.replayed_at_once]:
                await self._replay.send_multipart([client, b"", number.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([client, b"", b"\xff" * 8, b""])

    def _hash(self, name: int) -> int:
        return name - (1 << 64) if self.signed and name >= 1 << 63 else name
