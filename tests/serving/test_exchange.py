"""Frontends tell each other what they serve and which requests end workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from dynamo.protocols.engine import PreprocessedRequest, Tenant
from dynamo.router.choice.queue import Queue, RequestToPlace
from dynamo.router.choice.turns import tenant_key
from dynamo.router.suspects import Suspects
from dynamo.runtime.events import EventPlane, MemoryBus, MemoryEventPlane
from dynamo.serving.exchange import FrontendExchange
from dynamo.serving.served_model import ServedModel
from support.waiting import until

MINE, YOURS = Tenant("mine", keys=2), Tenant("yours", keys=2)


class Place:
    def release(self) -> None: ...


class OneFrontend:
    """A queue whose requests find a place when `free` says so."""

    def __init__(self, events: EventPlane) -> None:
        self.free = 0
        self.queue: Queue[Place] = Queue("fcfs", self.place, lambda request: ())
        self.suspects = Suspects()
        instances = SimpleNamespace(all=lambda: [SimpleNamespace(namespace="dynamo")])
        model = SimpleNamespace(name="tiny", router=SimpleNamespace(queue=self.queue, instances=instances))
        self.exchange = FrontendExchange(events, self.suspects, lambda: [cast(ServedModel, model)])
        self.exchange.follow(cast(ServedModel, model))
        self.exchange.start()

    def place(self, request: RequestToPlace, awaited: Any) -> Place | None:
        if not self.free:
            return None
        self.free -= 1
        return Place()

    def served(self, tenant: Tenant, tokens: int) -> None:
        request = RequestToPlace(request=None, request_id="", tenant=tenant, prompt_tokens=tokens)
        self.queue.passed(request, 0)

    async def ask(self, tenant: Tenant, tokens: int = 10) -> None:
        request = RequestToPlace(request=None, request_id="", tenant=tenant, prompt_tokens=tokens)
        await self.queue.wait(request, tokens)


@asynccontextmanager
async def frontends(count: int) -> AsyncIterator[list[OneFrontend]]:
    bus = MemoryBus()
    planes = [MemoryEventPlane(bus) for _ in range(count)]
    for plane in planes:
        await plane.start()
    found = [OneFrontend(plane) for plane in planes]
    try:
        yield found
    finally:
        for one, plane in zip(found, planes, strict=True):
            await one.exchange.close()
            await plane.close()


async def test_a_key_that_had_more_waits_for_one_that_waits_at_another_frontend() -> None:
    async with frontends(2) as (first, second):
        # The first message of each says that it is there; only then is there anybody to tell.
        await until(lambda: first.exchange.hears and second.exchange.hears)
        first.served(MINE, 1)
        waiting = asyncio.create_task(second.ask(YOURS))
        await until(lambda: first.queue.waiting.counter(tenant_key(YOURS)))
        first.served(MINE, 1000)
        await until(lambda: first.queue.takes_turns(MINE))
        await until(lambda: second.queue.waiting.counter(tenant_key(MINE)) >= 1000)
        first.free = 1
        mine = asyncio.create_task(first.ask(MINE))
        await until(lambda: first.queue.waiting.count)
        first.queue.dispatch()
        assert first.free == 1, "a place, and MINE does not take it"
        second.free = 1
        second.queue.dispatch()
        await waiting
        await mine


async def test_a_frontend_that_falls_silent_is_not_waited_for() -> None:
    async with frontends(2) as (first, second):
        await until(lambda: first.exchange.hears and second.exchange.hears)
        first.served(MINE, 1)
        waiting = asyncio.create_task(second.ask(YOURS))
        await until(lambda: first.queue.waiting.counter(tenant_key(YOURS)))
        first.served(MINE, 1000)
        await until(lambda: first.queue.takes_turns(MINE))
        await second.exchange.close()
        first.free = 1
        await first.ask(MINE)
        waiting.cancel()


async def test_a_key_that_is_blamed_by_one_frontend_is_blamed_by_all_also_by_one_that_joins_later() -> None:
    async with frontends(3) as (first, second, third):
        await third.exchange.close()
        await until(lambda: first.exchange.hears and second.exchange.hears)
        first.suspects.blame("mine", {7})
        deadly = first.suspects.suspicion(PreprocessedRequest(token_ids=[1]), MINE)
        deadly.sent(8)
        assert deadly.worker_lost(8)
        await until(lambda: second.suspects.is_blamed("mine") and second.suspects.is_explained(8, "yours"))
        third.exchange.start()
        await until(lambda: third.suspects.is_blamed("mine"))
