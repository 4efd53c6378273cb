"""The loop: observe, decide, act, and say in one sentence what was seen, expected and done."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.decide import ScalingDecision, decide
from dynamo.planner.history import Observation, PoolSeen
from dynamo.planner.parts import Actor, ActorError, Measurement, PoolOrder, SourceError, TrafficSource

log = logging.getLogger(__name__)

Observer = Callable[[Observation, ScalingDecision], None]


class Planner:
    def __init__(
        self,
        config: PlannerConfig,
        source: TrafficSource,
        actor: Actor,
        *,
        observer: Observer = lambda seen, decision: None,
        announce: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`observer` is called after each decision, and `announce` with its sentence."""
        self.config = config
        self._source = source
        self._actor = actor
        self._observer = observer
        self._announce = announce
        longest = max(
            config.throughput_adjustment_interval_seconds, config.manual_hold_seconds, config.scale_to_zero_seconds
        )
        kept = max(config.capacity_samples, round(longest / config.load_adjustment_interval_seconds)) + 2
        self.history: deque[Observation] = deque(maxlen=kept)
        self._asked: dict[Role, int] = {}
        self._said = self._warned = ""

    async def run(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.tick()
            due = max(due + self.config.load_adjustment_interval_seconds, loop.time())
            await asyncio.sleep(due - loop.time())

    async def tick(self) -> ScalingDecision:
        seen = await self._observe()
        self.history.append(seen)
        decision = decide(list(self.history), self.config)
        failure = await self._act(seen, decision)
        self._observer(seen, decision)
        self._say(sentence(seen, decision, self.config, failure))
        return decision

    async def _observe(self) -> Observation:
        now = asyncio.get_running_loop().time()
        try:
            measured = await self._source.read()
        except SourceError as error:
            self._warn(f"the metrics cannot be read: {error}")
            measured = None
        try:
            orders = await self._actor.read()
        except ActorError as error:
            self._warn(f"the number of workers cannot be read: {error}")
            orders = {}
        pools = {role: self._pool(role, orders.get(role), measured) for role in self.config.roles}
        interval = self.config.load_adjustment_interval_seconds
        return Observation(
            at=now,
            seconds=now - self.history[-1].at if self.history else interval,
            traffic=measured.traffic if measured else None,
            prefill=pools.get("prefill"),
            decode=pools.get("decode"),
        )

    def _pool(self, role: Role, order: PoolOrder | None, measured: Measurement | None) -> PoolSeen | None:
        if order is None:
            return None
        load = measured.pools.get(role) if measured else None
        serving = None if measured is None else load.serving if load else 0
        wanted = order.wanted if order.wanted is not None else serving
        if wanted is None:
            return None
        starting = order.starting if order.starting is not None else max(0, wanted - (serving or 0))
        return PoolSeen(
            wanted=wanted,
            serving=serving,
            starting=starting,
            asked=self._asked.get(role),
            in_progress=order.in_progress,
            queued_tokens=load.queued_tokens if load else 0.0,
            kv_rate=load.kv_rate if load else None,
        )

    async def _act(self, seen: Observation, decision: ScalingDecision) -> str:
        """Carry out the decision; returns what went wrong, or nothing."""
        if self.config.advisory:
            return ""
        targets: dict[Role, int] = {}
        changed = False
        for role in self.config.roles:
            pool, chosen = seen.pool(role), decision.pool(role)
            if pool is None or chosen is None:
                return ""
            targets[role] = chosen.workers
            changed |= chosen.workers != pool.wanted
        failure = ""
        if changed:
            try:
                await self._actor.scale(targets)
            except ActorError as error:
                failure = str(error)
                # The others may have changed: their new number must not look like someone else's.
                targets = {role: count for role, count in targets.items() if role not in error.unchanged}
        self._asked.update(targets)
        return failure

    def _warn(self, warning: str) -> None:
        log.log(logging.DEBUG if warning == self._warned else logging.WARNING, "%s", warning)
        self._warned = warning

    def _say(self, said: str) -> None:
        # The same sentence every five seconds would hide the others.
        log.log(logging.DEBUG if said == self._said else logging.INFO, "%s", said)
        self._said = said
        self._announce(said)


def sentence(seen: Observation, decision: ScalingDecision, config: PlannerConfig, failure: str = "") -> str:
    parts = [_describe_traffic(seen), *(_describe_pool(role, seen, decision, config) for role in config.roles)]
    if failure:
        parts.append(f"but that failed: {failure}")
    return "; ".join(parts)


def _describe_traffic(seen: Observation) -> str:
    traffic = seen.traffic
    if traffic is None:
        return "saw no metrics"
    words = f"saw {traffic.requests / seen.seconds if seen.seconds else 0:.1f} requests/s"
    if traffic.ttft is not None:
        words += f", TTFT {1000 * traffic.ttft:.0f} ms"
    if traffic.itl is not None:
        words += f", ITL {1000 * traffic.itl:.1f} ms"
    return words


def _describe_pool(role: Role, seen: Observation, decision: ScalingDecision, config: PlannerConfig) -> str:
    pool, chosen = seen.pool(role), decision.pool(role)
    name = "workers" if config.mode == "agg" else f"{role} workers"
    if pool is None or chosen is None:
        return f"{name}: their number is unknown, so it does not change"
    if chosen.workers == pool.wanted:
        return f"{name} stay at {pool.wanted}: {chosen.reason}"
    verb = "would go" if config.advisory else "go"
    return f"{name} {verb} from {pool.wanted} to {chosen.workers}: {chosen.reason}"
