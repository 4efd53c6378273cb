"""The simple policies with workers that take their time to be reached."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.errors import CannotConnect, InvalidRequest, Unavailable
from dynamo.protocols.instance import Instance
from dynamo.router import Placement, RoutingConfig
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import DistributedRuntime
from dynamo.runtime import RuntimeConfig as Network
from dynamo.runtime.instances import InstanceSet
from dynamo.settings.router import POLICIES

OLD, NEW = 1, 2


class Connecting:
    """A channel that is open when the test says so, or cannot be opened."""

    draining = False

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ready(self) -> bool:
        return self.opened.done() and not self.opened.exception()

    async def open(self) -> None:
        await asyncio.shield(self.opened)


class Connections:
    """A plane of such channels."""

    transport = "test"

    def __init__(self) -> None:
        self.to: dict[int, Connecting] = {}

    def channel(self, instance: Instance) -> Any:
        channel = self.to[instance.instance_id] = Connecting()
        return channel


class Side:
    def __init__(self, runtime: DistributedRuntime, mode: str) -> None:
        self.connections = Connections()
        self.instances = InstanceSet("model", self.connections)  # type: ignore[arg-type]
        for id in (OLD, NEW):
            self.instances.put(Instance(
                instance_id=id, namespace="n", component="c", endpoint="e", transport="test", address=""  # type: ignore[arg-type]
            ))  # fmt: skip
        self.router = SimpleRouter(
            RoutingConfig(mode=mode), self.instances, runtime.events, lambda _: ModelRuntimeConfig()
        )
        self.connections.to[OLD].opened.set_result(None)

    async def open(self, *, pinned: int | None = None) -> Placement:
        place = partial(self.router.place, {}, pinned=pinned)
        return await self.instances.reach(place, set(), pinned=pinned is not None)

    async def opening(self, **fields: Any) -> asyncio.Task[Placement]:
        """A request that has come as far as it can."""
        task: asyncio.Task[Placement] = asyncio.create_task(self.open(**fields))
        await asyncio.sleep(0)
        return task


@pytest.fixture
async def runtime() -> AsyncIterator[DistributedRuntime]:
    async with DistributedRuntime(config=Network.in_process({})) as runtime:
        yield runtime


@pytest.mark.parametrize("mode", POLICIES)
async def test_every_policy_chooses_one_of_the_workers_or_asks_for_its_name(
    runtime: DistributedRuntime, mode: str
) -> None:
    side = Side(runtime, mode)
    side.connections.to[NEW].opened.set_result(None)
    if mode == "direct":
        with pytest.raises(InvalidRequest, match="backend_instance_id"):
            await side.open()
    else:
        assert (await side.open()).instance_id in (OLD, NEW)


@pytest.mark.parametrize("mode", ["least-loaded", "power-of-two"])
async def test_a_worker_being_reached_is_not_given_everything_that_comes_meanwhile(
    runtime: DistributedRuntime, mode: str
) -> None:
    side = Side(runtime, mode)
    for _ in range(10):
        await side.open(pinned=OLD)
    opening = [await side.opening() for _ in range(20)]
    side.connections.to[NEW].opened.set_result(None)
    placed = Counter([(await one).instance_id for one in opening])
    assert placed == {OLD: 5, NEW: 15}


async def test_requests_named_for_a_worker_count_while_it_is_being_reached(runtime: DistributedRuntime) -> None:
    side = Side(runtime, "least-loaded")
    pinned = [await side.opening(pinned=NEW) for _ in range(8)]
    free = [await side.opening() for _ in range(8)]
    side.connections.to[NEW].opened.set_result(None)
    assert {(await one).instance_id for one in pinned} == {NEW}
    assert {(await one).instance_id for one in free} == {OLD}


@pytest.mark.parametrize("pinned", [None, NEW])
async def test_what_was_counted_is_given_back_when_a_worker_cannot_be_reached(
    runtime: DistributedRuntime, pinned: int | None
) -> None:
    side = Side(runtime, "least-loaded")
    await side.open(pinned=OLD)
    opening = await side.opening(pinned=pinned)
    assert side.router.active == 2
    side.connections.to[NEW].opened.set_exception(CannotConnect("refused"))
    if pinned:
        with pytest.raises(CannotConnect):
            await opening
        assert side.router.active == 1
    else:
        assert (await opening).instance_id == OLD
        assert side.router.active == 2
    assert [decision.worker_id for decision in side.router.decisions] == [OLD] * side.router.active
    await side.instances.close()


@pytest.mark.parametrize("pinned", [None, NEW])
async def test_what_was_counted_is_given_back_when_the_client_leaves(
    runtime: DistributedRuntime, pinned: int | None
) -> None:
    side = Side(runtime, "least-loaded")
    side.instances.remove(OLD)
    opening = await side.opening(pinned=pinned)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert side.router.active == 0


async def test_nothing_stays_counted_when_none_can_be_reached(runtime: DistributedRuntime) -> None:
    side = Side(runtime, "least-loaded")
    side.instances.remove(OLD)
    side.connections.to[NEW].opened.set_exception(CannotConnect("refused"))
    with pytest.raises(Unavailable):
        await side.open()
    assert side.router.active == 0
    await side.instances.close()
