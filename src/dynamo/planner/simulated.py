"""The planner on a simulated fleet, in virtual time: the loop is the one that scales real workers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.decide import ScalingDecision
from dynamo.planner.history import Observation, TrafficSeen
from dynamo.planner.parts import Measurement, PoolLoad, PoolOrder
from dynamo.planner.planner import Planner
from dynamo.simulate import virtual_time
from dynamo.simulate.fleet import SimulatedWorker
from dynamo.simulate.service_level import ServiceLevel
from dynamo.simulate.simulation import Simulation, SimulationConfig, simulated
from dynamo.simulate.traffic import SimulatedRequest


class PlannedReport(Struct, frozen=True, kw_only=True):
    completed: int
    failed: int
    within_targets: int
    """Requests whose time to the first token and mean time between tokens met the targets."""
    worker_seconds: float
    """From the start of each worker, loading included, to its end."""
    workers: tuple[int, ...]
    """Wanted, at each tick."""
    decisions: tuple[ScalingDecision, ...]

    @property
    def share_within_targets(self) -> float:
        return self.within_targets / (self.completed + self.failed) if self.completed + self.failed else 1.0

    @property
    def changes(self) -> list[int]:
        """The steps by which the number of workers changed."""
        return [after - before for before, after in pairwise(self.workers) if after != before]

    @property
    def reversals(self) -> int:
        """How often a step down followed one up, or the other way round."""
        steps = self.changes
        return sum((before > 0) != (after > 0) for before, after in pairwise(steps))


class SimulatedPool:
    """TrafficSource and actor for a planner of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._fleet = simulation.fleet
        self._joining: dict[asyncio.Task[None], float] = {}
        self._draining: dict[asyncio.Task[None], SimulatedWorker] = {}
        self._before: tuple[float, ...] = ()
        self.loading_seconds = 0.0
        self.outage = False
        """While it is set, the measurements cannot be read."""

    @property
    def serving(self) -> list[SimulatedWorker]:
        leaving = set(map(id, self._draining.values()))
        return [each for each in self._fleet.workers if not each.ended_at and id(each) not in leaving]

    async def read_measurement(self) -> Measurement | None:
        measured, router = self._simulation.measured, self._simulation.router
        now = (
            measured.begun, measured.first_tokens, measured.first_token_seconds, measured.more_tokens,
            measured.more_token_seconds, measured.completed, measured.input_tokens, measured.output_tokens,
        )  # fmt: skip
        before, self._before = self._before, now
        if not before:
            return None
        begun, first, first_seconds, more, more_seconds, ended, input_tokens, output_tokens = (
            after - earlier for after, earlier in zip(now, before, strict=True)
        )
        args = self._fleet.args
        loads = router.loads()
        serving = len(self.serving)
        blocks = sum(load.decode_blocks for load in loads)
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
                context_length=args.max_model_len,
            ),
            pools={
                "decode": PoolLoad(
                    serving=serving,
                    queued_tokens=sum(load.prefill_tokens for load in loads) + router.waiting_tokens,
                    kv_rate=blocks / (serving * args.num_gpu_blocks) if serving and args.num_gpu_blocks else None,
                )
            },
        )

    async def read(self) -> Mapping[Role, PoolOrder]:
        wanted = len(self.serving) + len(self._joining)
        return {"decode": PoolOrder(wanted=wanted, starting=len(self._joining))}

    async def scale(self, workers: Mapping[Role, int]) -> None:
        target = workers["decode"]
        while len(self.serving) + len(self._joining) < target:
            joining = asyncio.create_task(self._join())
            self._joining[joining] = asyncio.get_running_loop().time()
            joining.add_done_callback(self._joining.pop)
        for worker in reversed(self.serving):
            if len(self.serving) + len(self._joining) <= target:
                break
            draining = asyncio.create_task(worker.drain())
            self._draining[draining] = worker

    async def follow(self, schedule: Sequence[int], interval: float) -> None:
        for workers in schedule:
            await self.scale({"decode": workers})
            await asyncio.sleep(interval)

    async def _join(self) -> None:
        await asyncio.sleep(self._fleet.startup_time)
        self.loading_seconds += self._fleet.startup_time
        await self._fleet.join()

    async def close(self) -> None:
        for task in list(self._joining):
            task.cancel()
        await asyncio.gather(*self._joining, *self._draining, return_exceptions=True)


class _Measurements:
    def __init__(self, pool: SimulatedPool) -> None:
        self.read = pool.read_measurement


def simulate_planned(
    simulation: SimulationConfig,
    planner: PlannerConfig,
    traffic: Callable[[], Iterable[SimulatedRequest]],
    *,
    fixed: bool = False,
    schedule: Sequence[int] = (),
) -> PlannedReport:
    """Run the traffic through a fleet that the planner scales, or one that stays as it is (`fixed`).

    `schedule` names the number of workers at each tick instead.
    """
    seen: list[tuple[Observation, ScalingDecision]] = []

    async def work() -> PlannedReport:
        async with simulated(simulation) as running:
            level = running.measured = ServiceLevel(planner.ttft_ms / 1000, planner.itl_ms / 1000)
            pool = SimulatedPool(running)
            begun = asyncio.get_running_loop().time()
            made = Planner(planner, _Measurements(pool), pool, observer=lambda *both: seen.append(both))
            interval = planner.load_adjustment_interval_seconds
            task = None if fixed else asyncio.create_task(pool.follow(schedule, interval) if schedule else made.run())
            await running.replay(traffic())
            ended = asyncio.get_running_loop().time()
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            worker_seconds = running.fleet.worker_seconds(begun, ended) + pool.loading_seconds
            await pool.close()
            return PlannedReport(
                completed=level.completed,
                failed=level.failed,
                within_targets=level.within,
                worker_seconds=worker_seconds,
                workers=tuple(decision.decode.workers for _, decision in seen if decision.decode),
                decisions=tuple(decision for _, decision in seen),
            )

    random.seed(simulation.seed)
    return virtual_time.run(work())
