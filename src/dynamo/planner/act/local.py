"""Workers as processes of a supervisor in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from dynamo.planner.config import PlannerConfig, PlannerConfigError, Role
from dynamo.planner.parts import PoolOrder
from dynamo.process.supervisor import ProcessState, Supervisor

log = logging.getLogger(__name__)

_STARTING = (ProcessState.Starting, ProcessState.Waiting)


class LocalActor:
    """Processes of a supervisor; one that is taken away finishes its requests first."""

    def __init__(self, supervisor: Supervisor, config: PlannerConfig) -> None:
        self._supervisor = supervisor
        self._components = {role: config.component(role) for role in config.roles}
        self._scaling: set[asyncio.Task[None]] = set()
        for component in self._components.values():
            if component not in supervisor.components:
                known = ", ".join(supervisor.components)
                raise PlannerConfigError(f"{config.deployment}: has no component '{component}'; it has {known}")

    async def read(self) -> Mapping[Role, PoolOrder]:
        orders: dict[Role, PoolOrder] = {}
        for role, component in self._components.items():
            processes = self._supervisor.processes(component)
            starting = sum(process.state in _STARTING for process in processes)
            orders[role] = PoolOrder(wanted=len(processes), starting=starting)
        return orders

    async def scale(self, workers: Mapping[Role, int]) -> None:
        for role, count in workers.items():
            # Draining may take minutes; the planner goes on meanwhile.
            task = asyncio.create_task(self._supervisor.scale(self._components[role], count))
            self._scaling.add(task)
            task.add_done_callback(self._scaled)
        await asyncio.sleep(0)

    def _scaled(self, task: asyncio.Task[None]) -> None:
        self._scaling.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("the workers could not be scaled: %s", error, exc_info=error)

    async def close(self) -> None:
        """Wait for the workers that are being drained."""
        await asyncio.gather(*self._scaling, return_exceptions=True)
