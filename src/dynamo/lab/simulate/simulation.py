"""One simulation: traffic through the product's own router and delivery to simulated workers, in virtual time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from dynamo.engines.mocker import MockerArgs
from dynamo.handoff.router.handoffs import Handoffs
from dynamo.handoff.router.prefills import Prefills
from dynamo.lab.simulate import virtual_time
from dynamo.lab.simulate.fleet import ENDPOINT, MODEL, SimulatedFleet
from dynamo.lab.simulate.incidents import Incident, with_bursts
from dynamo.lab.simulate.measured import Values, WeightedHistogram
from dynamo.lab.simulate.report import FleetReport
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.protocols.card import ModelCard
from dynamo.protocols.engine import EngineOutput, Session
from dynamo.protocols.errors import DynamoException, InvalidArgument
from dynamo.router.config import RequestBackoff, RoutingConfig
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions, alone
from dynamo.router.factory import make_router
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.placement import Router
from dynamo.router.workers import Workers
from dynamo.runtime import Context, DistributedRuntime
from dynamo.runtime.membership import Membership


class SimulationConfig(Struct, frozen=True, kw_only=True):
    workers: int = 1
    prefill_workers: int = 0
    """Further workers that compute prompts; the others are decode workers then."""
    engine: MockerArgs = MockerArgs()
    prefill_engine: MockerArgs | None = None
    """The engine of the prefill workers, if it is not the same."""
    routing: RoutingConfig = RoutingConfig(mode="kv")
    concurrency: int | None = None
    """Requests under way at once; the times of the trace then do not count."""
    frontend_seconds: float = 0.0
    """What a frontend adds to the time to the first token: HTTP, tokenizing, the way to the worker and back."""
    migration_limit: int = 3
    incidents: Sequence[Incident] = ()
    seed: int = 0
    pauses: Literal["learned", "known"] = "learned"
    """Where `routing.keep_paused`: whether pauses of sessions are learned, or known before as nobody can."""
    name: str = ""


class Measured:
    """What happened to the requests of one simulation."""

    def __init__(self) -> None:
        self.ttft, self.tpot, self.e2e = Values(), Values(), Values()
        self.itl = WeightedHistogram()
        self.completed = self.failed = self.migrations = 0
        self.begun = self.first_tokens = self.more_tokens = 0
        self.first_token_seconds = self.more_token_seconds = 0.0
        self.input_tokens = self.cached_tokens = self.output_tokens = 0
        self.errors: dict[str, int] = {}
        self.first_error = ""
        self.last_end = 0.0

    def ended(self, request: _DeliveryEnd) -> None:
        now = request.last
        self.completed += 1
        self.last_end = max(self.last_end, now)
        self.input_tokens += request.asked.input_tokens
        self.cached_tokens += request.cached_tokens
        self.output_tokens += request.tokens_seen
        self.e2e.add(now - request.sent)
        if request.first is not None:
            self.ttft.add(request.first - request.sent)
            if request.tokens_seen > 1:
                self.tpot.add((now - request.first) / (request.tokens_seen - 1))

    def failed_with(self, error: DynamoException) -> None:
        self.failed += 1
        self.first_error = self.first_error or error.message
        words = type(error).__name__
        self.errors[words] = self.errors.get(words, 0) + 1


class _DeliveryEnd:
    """The sink at the end of one delivery."""

    __slots__ = ("_measured", "_time", "asked", "cached_tokens", "done", "first", "last", "sent", "tokens_seen")

    def __init__(self, asked: SimulatedRequest, measured: Measured, clock: Callable[[], float]) -> None:
        self.asked = asked
        self.sent = self.last = clock()
        self.first: float | None = None
        self.tokens_seen = 0
        self.cached_tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._measured = measured
        self._time = clock

    def tokens(self, ids: list[int]) -> None:
        if ids:
            self._saw(len(ids))

    def item(self, value: Any) -> None:
        if isinstance(value, EngineOutput):
            if value.token_ids:
                self._saw(len(value.token_ids))
            if value.completion_usage:
                details = value.completion_usage.prompt_tokens_details or {}
                self.cached_tokens = details.get("cached_tokens", 0)

    def end(self) -> None:
        self._measured.ended(self)
        self.done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        self._measured.failed_with(error)
        self.done.set_result(None)

    def _saw(self, count: int) -> None:
        now = self._time()
        measured = self._measured
        if self.first is None:
            measured.first_tokens += 1
            measured.first_token_seconds += now - self.sent
            self.first = self.last = now
            self.tokens_seen = 1
            count -= 1
        if count:
            # Steps that come together took about equally long: nothing but decoding happened between them.
            measured.itl.add((now - self.last) / count, count)
            measured.more_tokens += count
            measured.more_token_seconds += now - self.last
            self.tokens_seen += count
            self.last = now


class Simulation:
    """A fleet with its router. Traffic is sent by `replay`."""

    def __init__(
        self, config: SimulationConfig, fleet: SimulatedFleet, router: Router, handoffs: Handoffs | None = None
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.router = router
        self.handoffs = handoffs
        self.measured = Measured()
        self._loop = asyncio.get_running_loop()
        self.in_flight = 0

    async def ask(self, asked: SimulatedRequest) -> None:
        """Send one request and wait for its end."""
        sink = _DeliveryEnd(asked, self.measured, self._loop.time)
        self.measured.begun += 1
        context = Context(f"{next(self.fleet.request_numbers):x}")
        router = self.router
        limit = self.config.migration_limit
        session = Session(asked.session, final=asked.final) if asked.session else None
        delivery = Delivery(
            partial(router.place, session=session),
            router.instances,
            asked.preprocessed(),
            context,
            sink,
            DeliveryOptions(
                limit=limit,
                watch=router.watch,
                backoff=self._new_backoff,
                beside=self.handoffs.begin if self.handoffs else alone,
            ),
        )
        self.in_flight += 1
        try:
            if self.config.frontend_seconds:
                await asyncio.sleep(self.config.frontend_seconds)
            await delivery.start()
            await sink.done
        except DynamoException as error:
            self.measured.failed_with(error)
        finally:
            self.in_flight -= 1
            if session:
                self._paused(session, asked)
            self.measured.migrations += delivery.history.migrations
            await delivery.close()

    def _paused(self, session: Session, asked: SimulatedRequest) -> None:
        if isinstance(self.router, KvAwareRouter) and self.config.pauses == "known":
            self.router.session_paused(session, asked.ended_by, asked.pause)
        else:
            self.router.session_paused(session, asked.ended_by)

    def _new_backoff(self) -> RequestBackoff:
        return RequestBackoff(self.config.routing.migration_wait_secs, clock=self._loop.time, jitter=random.random)

    async def replay(self, traffic: Iterable[SimulatedRequest]) -> None:
        """Send all of it, at its times or with the configured concurrency, and wait for the last answer."""
        if self.config.concurrency is not None and any(each.kind == "burst" for each in self.config.incidents):
            raise InvalidArgument("a burst needs requests that arrive at their times, not a fixed number under way")
        traffic = with_bursts(traffic, self.config.incidents, self.config.seed)
        start = self._loop.time()
        incidents = [asyncio.create_task(incident.happen(self.fleet, start)) for incident in self.config.incidents]
        send = self._at_its_times if self.config.concurrency is None else self._as_answers_end
        try:
            await send(traffic, start)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # such as a row of a trace that cannot be read
        finally:
            for task in incidents:
                task.cancel()
        for outcome in await asyncio.gather(*incidents, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def report(self, begun: float, wall_seconds: float) -> FleetReport:
        """About everything since `begun`."""
        measured, fleet, config = self.measured, self.fleet, self.config
        worker_seconds = fleet.worker_seconds(begun, self._loop.time())
        busy = fleet.busy_seconds()
        return FleetReport(
            name=config.name,
            router_mode=config.routing.mode,
            workers=config.workers,
            prefill_workers=config.prefill_workers,
            rule_fallbacks=dict(sum(self.router.stats.rule_fallbacks.values(), Counter[str]())),
            splits=self._splits(),
            completed=measured.completed,
            failed=measured.failed,
            errors=measured.errors,
            first_error=measured.first_error,
            migrations=measured.migrations,
            input_tokens=measured.input_tokens,
            cached_tokens=measured.cached_tokens,
            restored_tokens=fleet.restored_tokens(),
            output_tokens=measured.output_tokens,
            virtual_seconds=max(0.0, measured.last_end - begun),
            wall_seconds=wall_seconds,
            worker_hours=worker_seconds / 3600,
            utilisation=sum(busy) / worker_seconds if worker_seconds else 0.0,
            busiest=max(busy) * len(busy) / sum(busy) if sum(busy) else 1.0,
            ttft_ms=measured.ttft.distribution(1e-3),
            itl_ms=measured.itl.distribution(1e-3),
            tpot_ms=measured.tpot.distribution(1e-3),
            e2e_ms=measured.e2e.distribution(1e-3),
        )

    def _splits(self) -> dict[str, int]:
        """Requests by who computed the prompt and why."""
        decisions = self.handoffs.stats.decisions if self.handoffs else {}
        named = {f"{'remote' if remote else 'local'} {reason}": n for (remote, reason), n in decisions.items()}
        return dict(sorted(named.items()))

    async def _at_its_times(self, traffic: Iterable[SimulatedRequest], start: float) -> None:
        sessions = _Sessions(self.ask)
        async with asyncio.TaskGroup() as group:
            for asked in traffic:
                if asked.at is not None:
                    await _sleep_until(start + asked.at, self._loop)
                sessions.send(asked, group)

    async def _as_answers_end(self, traffic: Iterable[SimulatedRequest], start: float) -> None:
        free = asyncio.Semaphore(self.config.concurrency or 1)

        async def ask(asked: SimulatedRequest) -> None:
            try:
                await self.ask(asked)
            finally:
                free.release()

        sessions = _Sessions(ask)
        async with asyncio.TaskGroup() as group:
            for asked in traffic:
                await free.acquire()
                sessions.send(asked, group)


class _Sessions:
    """Turns of one session follow each other."""

    def __init__(self, ask: Callable[[SimulatedRequest], Coroutine[Any, Any, None]]) -> None:
        self._ask = ask
        self._last: dict[str, asyncio.Task[None]] = {}

    def send(self, asked: SimulatedRequest, group: asyncio.TaskGroup) -> None:
        if not asked.session:
            group.create_task(self._ask(asked))
            return
        before = self._last.get(asked.session) or self._last.get(asked.after)
        task = group.create_task(self._after(before, asked))
        self._last[asked.session] = task
        task.add_done_callback(lambda done: self._forget(asked.session, done))

    async def _after(self, before: asyncio.Task[None] | None, asked: SimulatedRequest) -> None:
        if before is not None:
            await asyncio.wait({before})
        if asked.delay:
            await asyncio.sleep(asked.delay)
        await self._ask(asked)

    def _forget(self, session: str, done: asyncio.Task[None]) -> None:
        if self._last.get(session) is done:
            del self._last[session]


async def _sleep_until(when: float, loop: asyncio.AbstractEventLoop) -> None:
    if (left := when - loop.time()) > 0:
        await asyncio.sleep(left)


@asynccontextmanager
async def start_simulation(config: SimulationConfig) -> AsyncIterator[Simulation]:
    """Start a fleet with its router, and close both after the block. Runs on a `VirtualTimeLoop`."""
    fleet = SimulatedFleet(config.engine, prefill_args=config.prefill_engine)
    runtime = DistributedRuntime(config=fleet.config, local=fleet.local)
    await runtime.start()
    cards: asyncio.Future[ModelCard] = asyncio.get_running_loop().create_future()

    def found(instance_id: int, card: ModelCard) -> None:
        if not cards.done():
            cards.set_result(card)

    workers = Workers(runtime, ENDPOINT, found)
    await workers.start()
    loop = asyncio.get_running_loop()
    prefills = Prefills(runtime, config.routing)
    members = Membership(runtime.discovery, prefills.changed, cards=True)
    handoffs = Handoffs(prefills.pool(MODEL), config.routing.handoff, loop.time) if config.prefill_workers else None
    router: Router | None = None
    try:
        if handoffs is not None:
            await members.start()
            await fleet.join(config.prefill_workers, "prefill")
        await fleet.join(config.workers, "decode" if handoffs else None)
        router = make_router(
            config.routing, await cards, workers.instances, runtime, workers.runtime_of, rng=random.Random(config.seed)
        )
        if isinstance(router, KvAwareRouter) and router.rule:
            # How long a rule may take depends on the machine, and a simulation must not.
            router.rule.patience = 1000.0
        router.start()
        yield Simulation(config, fleet, router, handoffs)
    finally:
        await members.close()
        await prefills.close()
        if router:
            await router.close()
        await workers.close()
        await fleet.close()
        await runtime.close()


def simulate(config: SimulationConfig, traffic: Callable[[], Iterable[SimulatedRequest]]) -> FleetReport:
    """Run the traffic through the fleet and report; the same input gives the same report, except for `wall_seconds`."""

    async def work() -> FleetReport:
        async with start_simulation(config) as simulation:
            begun = asyncio.get_running_loop().time()
            await simulation.replay(traffic())
            return simulation.report(begun, time.perf_counter() - wall)

    wall = time.perf_counter()
    random.seed(config.seed)
    return virtual_time.run(work())


class ServiceLevel(Measured):
    """Counts the requests whose time to the first token and mean time between tokens are within the targets."""

    def __init__(self, ttft: float, itl: float) -> None:
        super().__init__()
        self._ttft, self._itl = ttft, itl
        self.within = 0

    @property
    def share_within(self) -> float:
        requests = self.completed + self.failed
        return self.within / requests if requests else 1.0

    def ended(self, request: Any) -> None:
        first, more = len(self.ttft), len(self.tpot)
        super().ended(request)
        if len(self.ttft) > first:
            slow = len(self.tpot) > more and self.tpot.last > self._itl
            self.within += self.ttft.last <= self._ttft and not slow
