"""The router's queue, driven by any sequence of arrivals, ends and cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.engine import Tenant
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.choice.queue import Queue, RequestToPlace
from dynamo.router.load.prompts import Prompts, SentPrompt

WORKERS = [WorkerRank(number, 0) for number in (1, 2)]
TENANTS = [Tenant("a"), Tenant("b"), Tenant("c")]
STEPS = st.lists(
    st.tuples(st.just("arrive"), st.integers(0, 2), st.sampled_from((None, None, None, 1, 2)))
    | st.tuples(st.sampled_from(("end", "cancel")), st.integers(0, 30), st.none()),
    max_size=60,
)


class Place:
    def __init__(self, slots: Slots, request: RequestToPlace, worker: WorkerRank) -> None:
        self._slots, self.request, self.worker = slots, request, worker
        self.sent: SentPrompt | None = None

    def release(self) -> None:
        self._slots.running.remove(self)
        if isinstance(self._slots, AheadSlots) and self.sent:
            self._slots.prompts.end(self.sent)
        self._slots.queue.dispatch()


class Slots:
    """Two workers that run two requests each, and a queue in front of them."""

    def __init__(self) -> None:
        self.running: list[Place] = []
        self.served: list[str] = []
        self.queue: Queue[Place] = Queue("fcfs", self._place, lambda request: self._candidates(request).workers)

    def free(self, worker: WorkerRank) -> bool:
        return sum(place.worker == worker for place in self.running) < 2

    def _candidates(self, request: RequestToPlace) -> Fleet:
        return Fleet({worker: Capacity() for worker in WORKERS if request.pinned in (None, worker.worker_id)}, 16)

    def _place(self, request: RequestToPlace, awaited: Collection[WorkerRank]) -> Place | None:
        for worker in self._candidates(request).workers:
            if worker not in awaited and self.free(worker):
                place = Place(self, request, worker)
                self.running.append(place)
                self.served.append(request.tenant.name)
                return place
        return None


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@given(STEPS)
async def test_everything_that_waits_is_served_and_no_worker_idles(steps: list[tuple[str, int, int | None]]) -> None:
    slots, tasks = Slots(), list[asyncio.Task[Place]]()
    cancelled = set[asyncio.Task[Place]]()
    for what, number, pinned in steps:
        match what:
            case "arrive":
                request = RequestToPlace(request=None, request_id="", tenant=TENANTS[number], pinned=pinned)
                tasks.append(asyncio.create_task(slots.queue.wait(request, 10)))
            case "end" if slots.running:
                slots.running[number % len(slots.running)].release()
                # Not settled: who is placed now may be cancelled before it has noticed.
                continue
            case "cancel" if tasks:
                task = tasks[number % len(tasks)]
                if not task.done():
                    cancelled.add(task)
                    task.cancel()
        await settle()
        for request in slots.queue:
            allowed = [worker for worker in WORKERS if request.pinned in (None, worker.worker_id)]
            assert not any(slots.free(worker) for worker in allowed)
    await settle()
    while slots.running:
        slots.running[0].release()
        await settle()
    assert len(slots.queue) == 0
    assert all(task.done() for task in tasks)
    assert {task for task in tasks if task.cancelled()} == cancelled


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
async def test_tenants_that_wait_are_served_alike(arrivals: list[int]) -> None:
    slots = Slots()
    full = [asyncio.create_task(slots.queue.wait(RequestToPlace(request=None, request_id=""), 10)) for _ in range(4)]
    await settle()
    slots.served.clear()
    waiting = {tenant.name: arrivals.count(at) for at, tenant in enumerate(TENANTS)}
    tasks = [
        asyncio.create_task(slots.queue.wait(RequestToPlace(request=None, request_id="", tenant=TENANTS[at]), 10))
        for at in arrivals
    ]
    await settle()
    while slots.running:
        slots.running[0].release()
        counts = {name: slots.served.count(name) for name in waiting}
        still = [counts[name] for name, number in waiting.items() if counts[name] < number]
        if still:
            assert max(still) - min(still) <= 1
        await settle()
    assert len(slots.served) == len(arrivals)
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*full, *tasks)


class AheadSlots(Slots):
    """Beyond what the workers run, a tenant of which nothing runs may have one request sent ahead."""

    BATCH = 25

    def __init__(self) -> None:
        super().__init__()
        self.prompts = Prompts()
        self.order: list[tuple[str, str]] = []

    def _place(self, request: RequestToPlace, awaited: Collection[WorkerRank]) -> Place | None:
        place, ahead = super()._place(request, awaited), 0
        if place is None:
            allowed = [worker for worker in self._candidates(request).workers if worker not in awaited]
            room = self.prompts.room_ahead(request.tenant.name, allowed, [self.BATCH] * len(allowed))
            if not room:
                return None
            place, ahead = Place(self, request, room[0]), request.prompt_tokens
            self.running.append(place)
        self.order.append((request.tenant.name, request.request_id))
        place.sent = SentPrompt(place.worker, request.tenant.name, 0.0, ahead)
        self.prompts.begin(place.sent)
        return place

    def check(self) -> None:
        """One request of a tenant ahead at most, and to each worker a batch and a prompt."""
        sent = [place.sent for place in self.running if place.sent and place.sent.ahead_tokens]
        assert all(sum(one.tenant == tenant.name for one in sent) <= 1 for tenant in TENANTS)
        for worker in WORKERS:
            assert sum(one.ahead_tokens for one in sent if one.worker == worker) < self.BATCH + 10
        first = next(iter(self.queue), None)
        if first:
            allowed = self._candidates(first).workers
            assert not any(map(self.free, allowed))
            assert not self.prompts.room_ahead(first.tenant.name, allowed, [self.BATCH] * len(allowed))


@given(STEPS)
async def test_one_request_of_a_tenant_goes_ahead_and_none_starves(steps: list[tuple[str, int, int | None]]) -> None:
    slots, tasks = AheadSlots(), list[asyncio.Task[Place]]()
    asked: list[tuple[str, str]] = []
    for at, (what, number, pinned) in enumerate(steps):
        if what == "arrive":
            tenant = TENANTS[number]
            request = RequestToPlace(
                request=None, request_id=f"{at} {pinned}", prompt_tokens=10, tenant=tenant, pinned=pinned
            )
            asked.append((tenant.name, request.request_id))
            tasks.append(asyncio.create_task(slots.queue.wait(request, 10)))
        elif slots.running:
            slots.running[number % len(slots.running)].release()
        await settle()
        slots.check()
    while slots.running:
        slots.running[0].release()
        await settle()
        slots.check()
    assert all(task.done() for task in tasks)
    assert sorted(slots.order) == sorted(asked)
    for tenant in TENANTS:
        anywhere = [one for one in asked if one[0] == tenant.name and one[1].endswith("None")]
        assert [one for one in slots.order if one in anywhere] == anywhere, "first come, first served"
