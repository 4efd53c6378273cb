"""Simulated workers behind the product's router, in virtual time, asked by tenants."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.engines.mocker.timing import Timing
from dynamo.lab.simulate.fleet import ENDPOINT, SimulatedFleet
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.protocols.card import ModelCard
from dynamo.protocols.engine import EngineOutput, Tenant
from dynamo.protocols.errors import DynamoException
from dynamo.router.config import RoutingConfig
from dynamo.router.delivery.delivery import Delivery
from dynamo.router.factory import make_router
from dynamo.router.workers import Workers
from dynamo.runtime import Context, DistributedRuntime


class _Answer:
    """The sink at the end of one delivery: when its first and its last token came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.first: float | None = None
        self.last = 0.0
        self.tokens_seen = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clock = clock

    def tokens(self, ids: list[int]) -> None:
        if ids:
            self.last = self._clock()
            self.first = self.last if self.first is None else self.first
            self.tokens_seen += len(ids)

    def item(self, value: Any) -> None:
        if isinstance(value, EngineOutput):
            self.tokens(list(value.token_ids))

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class SimulatedServer:
    """An asynchronous context; runs on a `VirtualTimeLoop`."""

    def __init__(
        self,
        args: MockerArgs,
        mode: str,
        workers: int = 1,
        *,
        timing: Callable[[MockerArgs], Timing] | None = None,
        queue_limit: int = 1 << 20,
    ) -> None:
        self._fleet = SimulatedFleet(args, timing=timing)
        self._config = structs.replace(RoutingConfig(mode=mode), queue_limit=queue_limit)
        self._count = workers
        self._numbers = itertools.count()
        self._runtime = DistributedRuntime(config=self._fleet.config, local=self._fleet.local)

    @property
    def now(self) -> float:
        return self._loop.time()

    async def __aenter__(self) -> SimulatedServer:
        self._loop = asyncio.get_running_loop()
        await self._runtime.start()
        cards: asyncio.Future[ModelCard] = self._loop.create_future()

        def found(_: int, card: ModelCard) -> None:
            if not cards.done():
                cards.set_result(card)

        self._workers = Workers(self._runtime, ENDPOINT, found)
        await self._workers.start()
        await self._fleet.join(self._count)
        for worker in self._fleet.workers:
            worker.engine._coarse = False  # as in a worker's process: an arrival ends a run of decode steps
        workers = self._workers
        self._router = make_router(self._config, await cards, workers.instances, self._runtime, workers.runtime_of)
        # Output is charged by the clock that the answers come by.
        self._router.queue.ledger._clock = self._loop.time
        self._router.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._router.close()
        await self._workers.close()
        await self._fleet.close()
        await self._runtime.close()

    async def ask(self, prompt: int, output: int, tenant: Tenant | None) -> tuple[float, float]:
        """When the first and the last token came."""
        number, router = next(self._numbers), self._router
        asked = SimulatedRequest(at=None, input_tokens=prompt, output_tokens=output, label=str(number))
        sink = _Answer(self._loop.time)
        context = Context(str(number))
        delivery = Delivery(partial(router.place, tenant=tenant), router.instances, asked.preprocessed(), context, sink)
        try:
            await delivery.start()
            await sink.done
        finally:
            context.kill()
            await delivery.close()
        assert sink.first is not None
        assert sink.tokens_seen == output
        return sink.first, sink.last
