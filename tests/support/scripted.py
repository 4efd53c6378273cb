"""Workers that answer as the test says, with a KV cache, its events and its snapshots, on real planes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from dynamo.kv.follow.rank_sync import FollowConfig
from dynamo.kv.hashing import local_hashes, sequence_hashes
from dynamo.kv.index.index import Index
from dynamo.kv.messages import (
    KV_EVENTS,
    KV_WIRE_VERSION,
    Cleared,
    KvSnapshot,
    Removed,
    RouterEvent,
    RouterEventBatch,
    SnapshotRequest,
    Stored,
    WorkerRank,
    subject,
)
from dynamo.kv.publish.feed import parts
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import DynamoException
from dynamo.router import RoutingConfig
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.placement import Placement, Router
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import Context, DistributedRuntime, EndpointId, Local, RuntimeConfig
from dynamo.runtime.client import Client
from dynamo.runtime.stream import Outlet
from support.waiting import PATIENCE, until

BLOCK = 4
PLACE = ("test", "backend")
GENERATE = EndpointId(*PLACE, "generate")
EAGER = FollowConfig(retry=0.02, patience=0.02, quiet=0.1, longest=0.1)


def prompt(letters: str) -> list[int]:
    """One block per letter."""
    return [ord(letter) * 10 + at for letter in letters for at in range(BLOCK)]


def asking(letters: str, length: int = 3, **routing: Any) -> PreprocessedRequest:
    return PreprocessedRequest(
        token_ids=prompt(letters),
        stop_conditions=StopConditions(max_tokens=length),
        routing=Routing(**routing) if routing else None,
    )


def network(events: str) -> RuntimeConfig:
    """`events` is memory, zmq, or the address of a NATS server."""
    environ = {"NATS_SERVER": events} if events.startswith("nats:") else {}
    kind = "nats" if environ else events
    return RuntimeConfig.from_env(environ, discovery_backend="memory", request_plane="memory", event_plane=kind)


class Held:
    """A request at a worker that waits for the test's word."""

    def __init__(self, request: PreprocessedRequest, outlet: Outlet) -> None:
        self.request = request
        self.outlet = outlet

    def answer(self) -> None:
        self.outlet.tokens([1])
        self.outlet.item(EngineOutput(token_ids=[2], finish_reason="length"))
        self.outlet.end()


class ScriptedWorker:
    """Keeps every prompt it computes; `hold` makes requests wait in `held`."""

    def __init__(self, local: Local, *, events: str = "memory", hold: bool = False, health_check: Any = None) -> None:
        self._health_check = health_check
        config = network(events)
        self.runtime = DistributedRuntime(config=structs.replace(config, graceful_shutdown_timeout=0.1), local=local)
        self.id = self.runtime.instance_id
        self.index = Index()
        self.last: dict[int, int] = {}
        self.requests: list[PreprocessedRequest] = []
        self.hold = hold
        self.held: asyncio.Queue[Held] = asyncio.Queue()
        self.salt = 0
        """Not 0: hashes tokens in a way of its own."""
        self.deliver: Callable[[bytes], int] = lambda _: 1
        """How often a message gets through."""
        self.snapshots = True
        """False from the start: there is no endpoint for them. Later: it only fails."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> ScriptedWorker:
        await self.runtime.start()
        if self.snapshots:
            endpoint = self.runtime.namespace(PLACE[0]).component(PLACE[1]).endpoint("kv_snapshot")
            self._tasks.append(asyncio.create_task(endpoint.serve_endpoint(self.tell)))
            client = await endpoint.client()
            await until(lambda: self.id in client.instance_set)
        endpoint = self.runtime.namespace(PLACE[0]).component(PLACE[1]).endpoint("generate")
        self._tasks.append(
            asyncio.create_task(
                endpoint.serve(self.generate, PreprocessedRequest, health_check_payload=self._health_check)
            )
        )
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.runtime.shutdown()
        await asyncio.gather(*self._tasks)
        await self.runtime.close()

    def generate(self, request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        self.requests.append(request)
        self.compute(request)
        held = Held(request, outlet)
        if self.hold:
            self.held.put_nowait(held)
        else:
            asyncio.get_running_loop().call_soon(held.answer)

    def compute(self, request: PreprocessedRequest) -> None:
        rank = (request.routing.dp_rank or 0) if request.routing else 0
        self.store(request.token_ids, rank)

    def store(self, tokens: Sequence[int], rank: int = 0) -> None:
        chain = sequence_hashes([block ^ self.salt for block in local_hashes(tokens, BLOCK)])
        new = next((at for at, block in enumerate(chain) if not self._holds(block, rank)), len(chain))
        if new < len(chain):
            self.publish(Stored(chain[new:], chain[new - 1] if new else None), rank)

    def evict(self, count: int, rank: int = 0) -> None:
        parts = self.index.snapshot(WorkerRank(self.id, rank))
        blocks = [block for part in parts for block in part.sequence_hashes][:count]
        if blocks:
            self.publish(Removed(blocks), rank)

    def clear(self, rank: int = 0) -> None:
        self.publish(Cleared(), rank)

    def publish(self, data: Stored | Removed | Cleared, rank: int = 0) -> None:
        number = self.last[rank] = self.last.get(rank, -1) + 1
        event = RouterEvent(worker_id=self.id, event_id=number, data=data, dp_rank=rank)
        self.index.apply(event)
        message = msgspec.msgpack.encode(RouterEventBatch(version=KV_WIRE_VERSION, events=[event]))
        for _ in range(self.deliver(message)):
            self.runtime.events.publish(subject(PLACE, KV_EVENTS), message)

    async def tell(self, request: Any) -> AsyncIterator[KvSnapshot]:
        asked = msgspec.convert(request, SnapshotRequest)
        if not self.snapshots:
            raise RuntimeError("no snapshot today")
        snapshot = self.snapshot(asked.dp_rank)
        for part in parts(snapshot, 5) if asked.parts else (snapshot,):
            yield part

    def snapshot(self, rank: int = 0) -> KvSnapshot:
        tiers = self.index.snapshot(WorkerRank(self.id, rank))
        return KvSnapshot(
            version=KV_WIRE_VERSION, worker_id=self.id, dp_rank=rank, tiers=tiers, last_event_id=self.last.get(rank)
        )

    def _holds(self, block: int, rank: int) -> bool:
        return self.index.holds(WorkerRank(self.id, rank), block)

    def blocks(self, rank: int = 0) -> int:
        return self.index.blocks(WorkerRank(self.id, rank))


class RouterSide:
    """One frontend: its runtime, its view of the workers and its router."""

    def __init__(
        self, local: Local, config: RoutingConfig, events: str, card: ModelRuntimeConfig, follow: FollowConfig
    ) -> None:
        self.runtime = DistributedRuntime(config=network(events), local=local)
        self._config = config
        self._card = card
        self._follow = follow
        self.client: Client
        self.router: Router

    @property
    def kv(self) -> KvAwareRouter:
        assert isinstance(self.router, KvAwareRouter)
        return self.router

    async def __aenter__(self) -> RouterSide:
        self.client = await self.runtime.client(GENERATE)
        if self._config.mode == "kv":
            self.router = KvAwareRouter(
                self._config, self.client.instance_set, self.runtime, BLOCK, lambda _: self._card,
                follow=self._follow, rng=random.Random(1),
            )  # fmt: skip
        else:
            self.router = SimpleRouter(
                self._config, self.client.instance_set, self.runtime.events, lambda _: self._card
            )
        self.router.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.router.close()
        await self.runtime.close()

    async def settled(self, workers: int) -> None:
        await until(lambda: len(self.client.instance_set) == workers)
        if follower := self.kv.follower:
            await until(lambda: follower.live)

    async def ask(self, request: PreprocessedRequest) -> int:
        """Run one request to its end; the instance that served it."""
        asked = Asked(self.router, request)
        await asked.start()
        await asked.done()
        assert asked.error is None, asked.error
        assert asked.delivery.instance_id is not None
        return asked.delivery.instance_id

    async def open(self, request: Any, *, pinned: int | None = None) -> Placement:
        """A booked place at an instance that could be reached."""
        place = partial(self.router.place, request, pinned=pinned)
        return await self.router.instances.reach(place, set(), pinned=pinned is not None)

    def same_as(self, worker: ScriptedWorker, rank: int = 0) -> bool:
        """Whether the index holds exactly what the worker does."""
        mine = self.kv.index.snapshot(WorkerRank(worker.id, rank))
        theirs = worker.index.snapshot(WorkerRank(worker.id, rank))
        return _content(mine) == _content(theirs)


def _content(parts: list[Any]) -> set[Any]:
    return {(part.tier, *block) for part in parts for block in zip(part.sequence_hashes, part.parents, strict=True)}


class Asked:
    """A request under way and what came back."""

    def __init__(self, router: Router, request: PreprocessedRequest, *, limit: int = 0, group: object = None) -> None:
        self.context = Context()
        self.tokens_seen: list[int] = []
        self.error: DynamoException | None = None
        self.first = asyncio.Event()
        self.ended = asyncio.Event()
        self.delivery = Delivery(
            partial(router.place, group=group),
            router.instances,
            request,
            self.context,
            self,
            DeliveryOptions(limit=limit, watch=router.watch, backoff=router.backoff),
        )

    async def start(self) -> None:
        await self.delivery.start()

    async def done(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.ended.wait()
        await self.delivery.close()

    async def leave(self) -> None:
        """What a client that hangs up causes."""
        self.context.kill()
        await self.delivery.close()

    def tokens(self, ids: list[int]) -> None:
        self.tokens_seen += ids
        self.first.set()

    def item(self, value: EngineOutput) -> None:
        self.tokens_seen += value.token_ids

    def end(self) -> None:
        self.ended.set()

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.ended.set()


@asynccontextmanager
async def routing(
    local: Local,
    *,
    events: str = "memory",
    card: ModelRuntimeConfig | None = None,
    follow: FollowConfig = EAGER,
    **config: Any,
) -> AsyncIterator[RouterSide]:
    settings = RoutingConfig(**{"mode": "kv", **config})
    async with RouterSide(local, settings, events, card or ModelRuntimeConfig(), follow) as side:
        yield side
