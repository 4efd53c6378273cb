"""Decides how many workers there should be: a pure function of the history and the configuration.

A decision adds workers at once and takes them away only after a whole window with too many. It stays where it is while
data is missing, while a change by someone else is fresh, and while an earlier decision is being carried out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct, structs

from dynamo.planner.capacity import LatencyLine, StepTime, late
from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.demand import demand_of, rate_of
from dynamo.planner.forecast import SUDDEN, Forecast, forecast_of
from dynamo.planner.history import Observation, PoolSeen
from dynamo.planner.zero import idle_long_enough

State = Literal[
    "scale_up", "scale_down", "no_change", "insufficient_data", "scaling_in_progress", "worker_count_mismatch",
    "manual_change",
]  # fmt: skip

TTFT_TAIL = 3.0
"""Waiting times have about an exponential tail: 95 % wait less than three times the mean."""
_ITL_TAIL = 1.15
"""The tail of the mean time between a request's tokens, which differs less."""
_ITL_TAIL_SLOW_START = 1.3
"""The same tail where workers start slowly: there has to be room for a rise that begins as well."""
_FULL_KV_SHARE = 0.9
"""The share of KV blocks that running requests may use after a scale-down."""
_STEADY_SHARE = 1 / 3
"""A scale-down needs that demand has not changed for this share of its window."""
_SCALE_UP_HOLD = 5 / 6
"""A worker is not taken away within this share of the window after one was added."""
_ROOM_FOR_CHANCE = 3.0
"""Standard deviations of demand that the workers left by a scale-down must have room for. With less room, chance alone
would soon call for the worker that was taken away: each decision looks again, and there are hundreds of them."""
_ROOM_AFTER_SCALE_DOWN = 1.0
"""The room, in standard deviations, where the last change was a scale-down too and workers start quickly."""
_ROOM_BEFORE_SCALE_UP = 1.5
"""After a scale-down, a worker is added only once demand is this number of standard deviations above what the workers
sustain, unless demand changed suddenly: turning back takes as much as the scale-down did."""
_WORK_OFF_INTERVALS = 4.0
"""Requests that wait longer than the target allows are to be worked off within this many intervals."""
_THRESHOLDS = {"throughput": (1.0, 0.1, 1.0, 0.6), "latency": (0.1, 0.0, 0.4, 0.1), "load": (1.0, 0.1, 1.0, 0.6)}
"""By target: queued prompt tokens per worker as shares of the context length, and the share of KV blocks, that are too
much and too little."""


class PoolDecision(Struct, frozen=True, kw_only=True):
    workers: int
    state: State
    reason: str


class ScalingDecision(Struct, frozen=True, kw_only=True):
    """The decision for each role; None where the number of its workers is unknown and does not change."""

    prefill: PoolDecision | None = None
    decode: PoolDecision | None = None
    forecast: Forecast = Forecast()

    def pool(self, role: Role) -> PoolDecision | None:
        return self.prefill if role == "prefill" else self.decode


def decide(history: Sequence[Observation], config: PlannerConfig) -> ScalingDecision:
    """Decide how many workers should run. `history` is not empty; its newest observation is the last."""
    forecast = forecast_of(history, config)
    chosen = {
        role: _choose(history, pool, role, forecast, config)
        for role in config.roles
        if (pool := history[-1].pool(role)) is not None
    }
    return ScalingDecision(forecast=forecast, **_within_budget(chosen, config))


def _choose(
    history: Sequence[Observation], pool: PoolSeen, role: Role, forecast: Forecast, config: PlannerConfig
) -> PoolDecision:
    now = history[-1]
    least, most = config.least_in_use(role), _max_workers(role, config)
    may_be_none = config.minimum(role) == 0

    def at(workers: int, state: State, reason: str) -> PoolDecision:
        lowest = 0 if may_be_none and workers == 0 else least
        within = min(max(workers, lowest), most)
        if within != workers:
            reason += f"; from {lowest} to {most} are allowed"
            state = "scale_up" if within > pool.wanted else "scale_down" if within < pool.wanted else "no_change"
        return PoolDecision(workers=within, state=state, reason=reason)

    if now.traffic is None or pool.serving is None:
        return at(pool.wanted, "insufficient_data", "the metrics are missing")
    if (changed := _changed_by_others(history, role)) is not None and changed + config.manual_hold_seconds > now.at:
        return at(pool.wanted, "manual_change", f"someone else asked for {pool.wanted}")
    if pool.in_progress:
        return at(pool.wanted, "scaling_in_progress", "the last decision is still in progress")
    if may_be_none and not pool.wanted:
        if not now.traffic.unfinished:
            return at(0, "no_change", "no request waits")
        return at(1, "scale_up", f"requests without an answer: {now.traffic.unfinished:.0f}")
    if may_be_none and idle_long_enough(history, role, config):
        why = f"there was no request for {config.scale_to_zero_seconds:g} s"
        return at(max(0, pool.wanted - config.scale_down_step), "scale_down", why)
    need, why = _need_now(history, role, forecast, config)
    available = pool.serving + pool.starting
    if need is not None and need > available:
        added = min(need - available, config.scale_up_step)
        return at(pool.wanted + added, "scale_up", why)
    if available != pool.wanted:
        seen = f"{pool.wanted} workers should run, but {available} are seen"
        return at(pool.wanted, "worker_count_mismatch", f"{seen}, so none is taken away")
    if pool.starting:
        return at(pool.wanted, "scaling_in_progress", f"{pool.starting} workers are starting")
    if need is None:
        return at(pool.wanted, "insufficient_data", why)
    floor = _need_in_window(history, role, forecast, config)
    floor = pool.wanted if floor is None else max(floor, least, _need_for_blocks(pool))
    if floor < pool.wanted:
        return at(max(floor, pool.wanted - config.scale_down_step), "scale_down", f"{why}: {floor} are enough")
    return at(pool.wanted, "no_change", why)


def _need_for_blocks(pool: PoolSeen) -> int:
    """How many workers the KV blocks of the running requests need."""
    return math.ceil((pool.serving or 0) * (pool.kv_rate or 0.0) / _FULL_KV_SHARE)


def _need_now(
    history: Sequence[Observation], role: Role, forecast: Forecast, config: PlannerConfig
) -> tuple[int | None, str]:
    """How many workers are needed now, and why; None where that is not known."""
    now = history[-1]
    if config.optimization_target != "sla":
        return _need_by_load(now, role, config)
    seconds = _WORK_OFF_INTERVALS * config.load_adjustment_interval_seconds
    waiting = late(now, config.ttft_ms / 1000) if role in _ttft_roles(config) else 0.0
    rate = (forecast.requests_per_second or 0.0) + waiting / seconds
    chance = 0.0
    if forecast.demand.observations > SUDDEN and _last_step(history, role) < 0:
        chance = _ROOM_BEFORE_SCALE_UP * (1 - _slow_start(config)) * forecast.demand.deviation
    need, why = _need_for_rate(max(0.0, rate - chance), role, forecast, config, share=1.0)
    if chance:
        why = f"beyond chance, {why}"
    pool = now.pool(role)
    # Where the models know what is needed, a miss is theirs only if it lasts longer than workers take to start.
    patience = 2 if need is None else 2 + math.ceil(config.startup_seconds / config.load_adjustment_interval_seconds)
    recent = history[-patience:]
    if (
        pool and pool.serving and not pool.starting and len(recent) == patience
        and _same_workers(recent, role) and (missed := _missed_target(recent, role, config))
    ):  # fmt: skip
        if why_not := _why_more_cannot_help(rate_of(now) / pool.serving, role, forecast, config):
            return None, f"{missed}; {why_not}"
        return max(need or 0, pool.serving + 1), missed
    return need, why


def _same_workers(recent: Sequence[Observation], role: Role) -> bool:
    return len({pool.serving if (pool := seen.pool(role)) else None for seen in recent}) == 1


def _need_in_window(
    history: Sequence[Observation], role: Role, forecast: Forecast, config: PlannerConfig
) -> int | None:
    """What the whole window needed, with room to spare; None where a part of it is unknown."""
    window = _window(history, role, config)
    if window is None or _was_scaled_up(window[-math.ceil(_SCALE_UP_HOLD * len(window)) :], role):
        return None
    if config.optimization_target != "sla":
        return max(_need_by_load(seen, role, config)[0] for seen in window)
    demand = demand_of(window, len(window))
    share = config.load_scaling_down_sensitivity / 100
    chance = _ROOM_FOR_CHANCE
    if _last_step(history, role) < 0:
        chance += (_ROOM_AFTER_SCALE_DOWN - _ROOM_FOR_CHANCE) * (1 - _slow_start(config))
    rate = max(demand.rate + chance * demand.deviation, forecast.requests_per_second or 0.0)
    need = _need_for_rate(rate, role, forecast, config, share=share)[0]
    pool = history[-1].pool(role)
    # One worker too many may be chance, and is taken away after the whole window; more of them after a part of it.
    least = 1.0 if pool and need == pool.wanted - 1 else _STEADY_SHARE
    return need if demand.observations >= least * len(window) else None


def _slow_start(config: PlannerConfig) -> float:
    """How slowly workers start: 0 is at once, 1 is a third of the window or longer."""
    return min(1.0, 3 * config.startup_seconds / config.throughput_adjustment_interval_seconds)


def _last_step(history: Sequence[Observation], role: Role) -> int:
    """By how much the number of workers last changed; 0 where it did not."""
    steps = (pool.wanted - earlier.wanted for (_, earlier), (_, pool) in _pairs_known(history, role))
    return next(filter(None, steps), 0)


def _pairs_known(
    history: Sequence[Observation], role: Role
) -> Iterator[tuple[tuple[float, PoolSeen], tuple[float, PoolSeen]]]:
    """The workers of two observations in a row and their times, the newest first; those without data are left out."""
    known = ((seen.at, pool) for seen in reversed(history) if (pool := seen.pool(role)))
    return ((before, after) for after, before in pairwise(known))


def _was_scaled_up(recent: Sequence[Observation], role: Role) -> bool:
    wanted = [pool.wanted for seen in recent if (pool := seen.pool(role))]
    return any(before < after for before, after in pairwise(wanted))


def _window(history: Sequence[Observation], role: Role, config: PlannerConfig) -> Sequence[Observation] | None:
    """The observations of the time that a scale-down needs; None where one is missing."""
    for at in range(len(history) - 1, -1, -1):
        seen = history[at]
        pool = seen.pool(role)
        if seen.traffic is None or pool is None or pool.serving is None:
            return None
        if history[-1].at - seen.at + seen.seconds >= config.throughput_adjustment_interval_seconds:
            return history[at:]
    return None


def _need_for_rate(
    rate: float, role: Role, forecast: Forecast, config: PlannerConfig, *, share: float
) -> tuple[int | None, str]:
    """The workers for `rate` requests per second, each used up to `share` of what it sustains within the targets."""
    said = f"{rate:.2f} requests/s are expected"
    if not rate:
        return 0, said
    tokens = forecast.tokens(role)
    capacity = min(
        (model.sustainable_rate(target, tail, *tokens) for model, target, tail in _limits(role, forecast, config)),
        default=None,
    )
    if not capacity:
        return None, f"{said}, and what a worker sustains within the targets is not known"
    return math.ceil(rate / (share * capacity)), f"{said}, and one {role} worker sustains {capacity:.2f}"


def _limits(
    role: Role, forecast: Forecast, config: PlannerConfig
) -> Iterator[tuple[LatencyLine | StepTime, float, float]]:
    """Yield what bounds the load of a worker: a model, its target in seconds, and its tail."""
    if not forecast.input_tokens or not forecast.output_tokens:
        return
    if role in _ttft_roles(config) and forecast.ttft:
        yield forecast.ttft, config.ttft_ms / 1000, TTFT_TAIL
    if role == "decode" and forecast.itl:
        yield forecast.itl, config.itl_ms / 1000, itl_tail(config)


def itl_tail(config: PlannerConfig) -> float:
    return _ITL_TAIL + (_ITL_TAIL_SLOW_START - _ITL_TAIL) * _slow_start(config)


def _why_more_cannot_help(rate: float, role: Role, forecast: Forecast, config: PlannerConfig) -> str | None:
    """Say why more workers cannot help where each misses a target with only `rate` requests per second."""
    for model, target, _ in _limits(role, forecast, config):
        if model.fitted and model.idle >= target and model.is_half_used(rate, *forecast.tokens(role)):
            return f"a worker without load would take {1000 * model.idle:.0f} ms, so more workers cannot help"
    return None


def _missed_target(recent: Sequence[Observation], role: Role, config: PlannerConfig) -> str | None:
    """Say which target the mean misses in all of these observations; None where it misses none."""
    checks = []
    if role in _ttft_roles(config):
        checks.append(("time to the first token", config.ttft_ms, [o.traffic and o.traffic.ttft for o in recent]))
    if role == "decode":
        checks.append(("time between tokens", config.itl_ms, [o.traffic and o.traffic.itl for o in recent]))
    for name, target, values in checks:
        if len(values) > 1 and all(value and value * 1000 > target for value in values):
            return f"the mean {name} is {1000 * (values[-1] or 0):.0f} ms, above {target:g} ms"
    return None


def _need_by_load(seen: Observation, role: Role, config: PlannerConfig) -> tuple[int, str]:
    """Workers that bring the use below its upper threshold, or just below the lower one where it is less."""
    pool = seen.pool(role)
    assert pool
    assert pool.serving is not None
    assert seen.traffic
    queue_up, queue_down, kv_up, kv_down = _THRESHOLDS[config.optimization_target]
    context = seen.traffic.context_length or 0.0
    queue_up = _given_or(config.prefill_scale_up_queue_tokens, queue_up * context)
    queue_down = _given_or(config.prefill_scale_down_queue_tokens, queue_down * context)
    serving = pool.serving
    need, said = 0, []
    if role in _ttft_roles(config) and queue_up > 0:
        queued = pool.queued_tokens / max(serving, 1)
        need = max(need, _need_for_use(serving, queued, queue_up, queue_down))
        said.append(f"{queued:.0f} prompt tokens per worker wait")
    if role == "decode" and pool.kv_rate is not None:
        kv_up = _given_or(config.decode_scale_up_kv_rate, kv_up)
        kv_down = _given_or(config.decode_scale_down_kv_rate, kv_down)
        need = max(need, _need_for_use(serving, pool.kv_rate, kv_up, kv_down))
        said.append(f"{100 * pool.kv_rate:.0f} % of the KV blocks are in use")
    if not said:
        return serving, "the load of the workers is not known"
    return need, " and ".join(said)


def _need_for_use(serving: int, use: float, up: float, down: float) -> int:
    if use >= up:
        return max(serving + 1, math.ceil(serving * use / up))
    if use > down or down <= 0 < use:
        return serving
    return min(serving, math.ceil(serving * use / down)) if down > 0 else 0


def _changed_by_others(history: Sequence[Observation], role: Role) -> float | None:
    """When the number of workers was last found to be another than what this planner had asked for."""
    for (_, earlier), (at, pool) in _pairs_known(history, role):
        if pool.asked is not None and pool.wanted != pool.asked and earlier.wanted != pool.wanted:
            return at
    return None


def _ttft_roles(config: PlannerConfig) -> tuple[Role, ...]:
    """The roles whose workers compute prompts."""
    return ("decode",) if config.mode == "agg" else ("prefill",)


def _max_workers(role: Role, config: PlannerConfig) -> int:
    """The most workers that the budget allows, with the minimum of the other role."""
    others = sum(config.least_in_use(other) * config.gpus(other) for other in config.roles if other != role)
    return (config.max_gpu_budget - others) // config.gpus(role)


def _within_budget(chosen: dict[Role, PoolDecision], config: PlannerConfig) -> dict[Role, PoolDecision]:
    """Share the budget between the roles in proportion to what each wants above its minimum."""
    wanted = {role: decision.workers for role, decision in chosen.items()}
    workers = dict(wanted)
    if _spent(workers, config) > config.max_gpu_budget:
        least = {role: min(wanted[role], config.least_in_use(role)) for role in workers}
        share = (config.max_gpu_budget - _spent(least, config)) / (_spent(workers, config) - _spent(least, config))
        workers = {role: least[role] + math.floor((count - least[role]) * share) for role, count in workers.items()}
        for role in workers:
            rest = (config.max_gpu_budget - _spent(workers, config)) // config.gpus(role)
            workers[role] += min(rest, wanted[role] - workers[role])
    if workers:
        last = list(workers)[-1]
        workers[last] += max(0, config.min_gpu_budget - _spent(workers, config)) // config.gpus(last)
    return {
        role: decision
        if workers[role] == wanted[role]
        else structs.replace(decision, workers=workers[role], reason=f"{decision.reason}; limited by the GPU budget")
        for role, decision in chosen.items()
    }


def _spent(workers: Mapping[Role, int], config: PlannerConfig) -> int:
    return sum(count * config.gpus(role) for role, count in workers.items())


def _given_or(own: float | None, default: float) -> float:
    return default if own is None else own
