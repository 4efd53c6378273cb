"""The planner on a simulated fleet, in virtual time: the loop is the one that scales real workers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from dynamo.lab.simulate import virtual_time
from dynamo.lab.simulate.fleet import SimulatedWorker
from dynamo.lab.simulate.simulation import ServiceLevel, Simulation, SimulationConfig, start_simulation
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.decide import ScalingDecision
from dynamo.planner.history import Observation, TrafficSeen
from dynamo.planner.parts import Measurement, PoolLoad, PoolOrder
from dynamo.planner.planner import Planner
from dynamo.router.placement import Router


class PlannedReport(Struct, frozen=True, kw_only=True):
    completed: int
    failed: int
    within_targets: int
    """Requests whose time to the first token and mean time between tokens met the targets."""
    worker_seconds: float
    """From the start of each worker, loading included, to its end."""
    workers: tuple[int, ...]
    """Wanted, at each tick; of `mode: disagg` the decode workers."""
    prefill_workers: tuple[int, ...] = ()
    decisions: tuple[ScalingDecision, ...]

    @property
    def share_within_targets(self) -> float:
        return self.within_targets / (self.completed + self.failed) if self.completed + self.failed else 1.0

    @property
    def changes(self) -> list[int]:
        """The steps by which the number of workers changed."""
        return _steps(self.workers)

    @property
    def reversals(self) -> int:
        """How often a step down followed one up, or the other way round, of the same role."""
        both = (_steps(self.prefill_workers), self.changes)
        return sum((before > 0) != (after > 0) for steps in both for before, after in pairwise(steps))


def _steps(workers: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(workers) if after != before]


class SimulatedPool:
    """The workers of one role, which start and drain."""

    def __init__(self, simulation: Simulation, role: Role) -> None:
        self._fleet = simulation.fleet
        self._splits = simulation.handoffs is not None
        self._role = role
        self._joining: set[asyncio.Task[None]] = set()
        self._draining: dict[asyncio.Task[None], SimulatedWorker] = {}
        self.loading_seconds = 0.0

    @property
    def serving(self) -> list[SimulatedWorker]:
        leaving = set(map(id, self._draining.values()))
        return [
            each
            for each in self._fleet.workers
            if each.prefills == (self._role == "prefill") and not each.ended_at and id(each) not in leaving
        ]

    def load(self, router: Router | None) -> PoolLoad:
        """`router` is the one that chooses among these workers; None while there are none."""
        loads = router.loads() if router else []
        serving, blocks = len(self.serving), self._fleet.args.num_gpu_blocks
        used = sum(load.decode_blocks for load in loads)
        return PoolLoad(
            serving=serving,
            queued_tokens=sum(load.prefill_tokens for load in loads) + (router.waiting_tokens if router else 0),
            kv_rate=used / (serving * blocks) if serving and blocks else None,
        )

    def order(self) -> PoolOrder:
        return PoolOrder(wanted=len(self.serving) + len(self._joining), starting=len(self._joining))

    def scale(self, target: int) -> None:
        while len(self.serving) + len(self._joining) < target:
            joining = asyncio.create_task(self._join())
            self._joining.add(joining)
            joining.add_done_callback(self._joining.discard)
        for worker in reversed(self.serving):
            if len(self.serving) + len(self._joining) <= target:
                break
            draining = asyncio.create_task(worker.drain())
            self._draining[draining] = worker

    async def _join(self) -> None:
        await asyncio.sleep(self._fleet.startup_time)
        self.loading_seconds += self._fleet.startup_time
        await self._fleet.join(1, self._role if self._splits else None)

    async def close(self) -> None:
        for task in list(self._joining):
            task.cancel()
        await asyncio.gather(*self._joining, *self._draining, return_exceptions=True)


class ScaledFleet:
    """TrafficSource and actor for a planner of one simulation."""

    def __init__(self, simulation: Simulation, roles: Sequence[Role]) -> None:
        self._simulation = simulation
        self._pools = {role: SimulatedPool(simulation, role) for role in roles}
        self._before: tuple[float, ...] = ()

    @property
    def loading_seconds(self) -> float:
        return sum(pool.loading_seconds for pool in self._pools.values())

    async def read_measurement(self) -> Measurement | None:
        measured = self._simulation.measured
        now = (
            measured.begun, measured.first_tokens, measured.first_token_seconds, measured.more_tokens,
            measured.more_token_seconds, measured.completed, measured.input_tokens, measured.output_tokens,
            *self._splits(),
        )  # fmt: skip
        before, self._before = self._before, now
        if not before:
            return None
        begun, first, first_seconds, more, more_seconds, ended, input_tokens, output_tokens, decided, split = (
            after - earlier for after, earlier in zip(now, before, strict=True)
        )
        return Measurement(
            traffic=TrafficSeen(
                requests=begun,
                first_tokens=first,
                input_tokens=input_tokens / ended if ended else None,
                output_tokens=output_tokens / ended if ended else None,
                generated=first + more,
                ttft=first_seconds / first if first else None,
                itl=more_seconds / more if more else None,
                waiting=measured.begun - measured.first_tokens - measured.failed,
                unfinished=measured.begun - measured.completed - measured.failed,
                context_length=self._simulation.fleet.args.max_model_len,
                split_share=split / decided if decided else None,
            ),
            pools={role: pool.load(self._router(role)) for role, pool in self._pools.items()},
        )

    def _splits(self) -> tuple[int, int]:
        """Requests that could have been split, and those that were."""
        decisions = self._simulation.handoffs.stats.decisions if self._simulation.handoffs else {}
        return sum(decisions.values()), sum(count for (remote, _), count in decisions.items() if remote)

    def _router(self, role: Role) -> Router | None:
        handoffs = self._simulation.handoffs
        return handoffs.pool.router if handoffs and role == "prefill" else self._simulation.router

    async def read(self) -> Mapping[Role, PoolOrder]:
        return {role: pool.order() for role, pool in self._pools.items()}

    async def scale(self, workers: Mapping[Role, int]) -> None:
        for role, target in workers.items():
            self._pools[role].scale(target)

    async def follow(self, schedule: Sequence[int], interval: float) -> None:
        for workers in schedule:
            await self.scale({"decode": workers})
            await asyncio.sleep(interval)

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()


class _Measurements:
    def __init__(self, fleet: ScaledFleet) -> None:
        self.read = fleet.read_measurement


def simulate_planned(
    simulation: SimulationConfig,
    planner: PlannerConfig,
    traffic: Callable[[], Iterable[SimulatedRequest]],
    *,
    fixed: bool = False,
    schedule: Sequence[int] = (),
) -> PlannedReport:
    """Run the traffic through a fleet that the planner scales, or one that stays as it is (`fixed`).

    `schedule` names the number of decode workers at each tick instead. `mode: disagg` is for a fleet that has prefill
    workers, and for no other.
    """
    if (planner.mode == "disagg") != bool(simulation.prefill_workers):
        raise ValueError(
            f"mode: {planner.mode} is planned for a fleet with {simulation.prefill_workers} prefill workers"
        )
    seen: list[tuple[Observation, ScalingDecision]] = []

    async def work() -> PlannedReport:
        async with start_simulation(simulation) as running:
            level = running.measured = ServiceLevel(planner.ttft_ms / 1000, planner.itl_ms / 1000)
            fleet = ScaledFleet(running, planner.roles)
            begun = asyncio.get_running_loop().time()
            made = Planner(planner, _Measurements(fleet), fleet, observer=lambda *both: seen.append(both))
            interval = planner.load_adjustment_interval_seconds
            task = None if fixed else asyncio.create_task(fleet.follow(schedule, interval) if schedule else made.run())
            await running.replay(traffic())
            ended = asyncio.get_running_loop().time()
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            worker_seconds = running.fleet.worker_seconds(begun, ended) + fleet.loading_seconds
            await fleet.close()
            return PlannedReport(
                completed=level.completed,
                failed=level.failed,
                within_targets=level.within,
                worker_seconds=worker_seconds,
                workers=tuple(decision.decode.workers for _, decision in seen if decision.decode),
                prefill_workers=tuple(decision.prefill.workers for _, decision in seen if decision.prefill),
                decisions=tuple(decision for _, decision in seen),
            )

    random.seed(simulation.seed)
    return virtual_time.run(work())
