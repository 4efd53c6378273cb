"""What it costs to send a prompt to each worker: four columns and their sum. docs/routing-internals.md has the rule.

The unit is the prompt token: what the fleet could have computed instead.
"""

from __future__ import annotations

import math
from operator import mul, sub

from msgspec import Struct

from dynamo.kv.index.overlaps import Overlaps
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.choice.fleet import Fleet
from dynamo.router.load_book import Loads

TRAFFIC_UNIT = 1024.0
"""Tokens of recent traffic that cost as much as computing one token; the mean traffic counts as at least this."""


class CostConfig(Struct, frozen=True, kw_only=True):
    overlap_weight: float = 1.0
    """The weight of cached blocks; 0 chooses by load alone."""
    temperature: float = 0.0
    """0 takes the cheapest worker; above 0, workers are drawn by softmax over their scaled costs."""
    host_weight: float = 0.75
    disk_weight: float = 0.25
    external_weight: float = 0.25
    pass_tokens: float = 640.0
    """Cost of joining a worker that is computing prompts: its current forward pass must end first."""
    full: float = 4096.0
    """Cost of a worker with all its blocks in use: the more they are, the longer each step takes."""
    tolerance: float = 1.3
    """Recent traffic of a worker, as a multiple of the mean, above which it costs up to one batch more."""

    def __post_init__(self) -> None:
        weights = ("overlap_weight", "host_weight", "disk_weight", "external_weight")
        for name in (*weights, "temperature", "pass_tokens", "full"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")
        if not 1 <= self.tolerance < math.inf:
            raise InvalidArgument(f"tolerance must be a finite number of at least 1, not {self.tolerance}")


class Costs(Struct, frozen=True):
    """One column per part of the cost, one row per candidate; `total` is their sum."""

    cached: list[float]
    """Blocks of the prompt that need not be computed."""
    work: list[float]
    waiting: list[float]
    crowding: list[float]
    spreading: list[float]
    total: list[float]


def cost_columns(
    prompt_tokens: int, prompt_blocks: int, fleet: Fleet, overlaps: Overlaps, loads: Loads, config: CostConfig
) -> Costs:
    """The cost of a prompt at every candidate. There must be at least one."""
    held, shared = held_blocks(prompt_tokens, fleet, overlaps, config), loads.shared_blocks
    if any(shared):
        # Blocks that a running request uses are cached, or will be before this prompt is computed.
        cached = [here if here > used else used for here, used in zip(held, shared, strict=True)]
        waiting = _waiting_behind_own_prefix(held, cached, fleet, loads, config)
        in_use = list(map(sub, loads.active_blocks, shared))
    else:
        cached, in_use = held, loads.active_blocks
        busy = config.pass_tokens
        waiting = [tokens + busy if tokens else 0.0 for tokens in loads.prefill_tokens]
    if loads.pass_left:
        waiting = list(map(mul, waiting, loads.pass_left))
    unit = loads.scale / TRAFFIC_UNIT
    traffic = [sent * unit for sent in loads.sent]
    mean = max(1.0, sum(traffic) / len(traffic))
    per_mean, weight = 1 / mean, config.overlap_weight
    prompt, block = float(prompt_tokens), float(fleet.block_size)
    work = [
        weight * (prompt - blocks * block) * (1.0 + recent * per_mean if recent < mean else 2.0)
        for blocks, recent in zip(cached, traffic, strict=True)
    ]
    crowding = _crowding(float(prompt_blocks), in_use, fleet, config)
    spreading = _spreading(traffic, mean, fleet, loads, config)
    total = [
        own + others + memory + share
        for own, others, memory, share in zip(work, waiting, crowding, spreading, strict=True)
    ]
    return Costs(cached, work, waiting, crowding, spreading, total)


class Kept(Struct, frozen=True):
    """Where the last turn of the prompt's session ran, and what it left there."""

    at: int
    """The index of the worker among the candidates."""
    tokens: int


def credit_session(columns: Costs, kept: Kept, prompt_tokens: int, block_size: int) -> None:
    """Half of what the session's last turn left at its worker counts as cached there, though no event says so.

    Only half: its blocks may have gone meanwhile. A worker with more to do than that loses the session.
    """
    unseen = min(kept.tokens, prompt_tokens) - columns.cached[kept.at] * block_size
    if unseen > 0:
        columns.work[kept.at] -= unseen / 2
        columns.total[kept.at] -= unseen / 2


def _crowding(joining: float, in_use: list[float], fleet: Fleet, config: CostConfig) -> list[float]:
    """What the blocks in use with this prompt cost, and those that it would have to wait for."""
    crowding = [
        (blocks + joining) * per_block for blocks, per_block in zip(in_use, fleet.crowding(config.full), strict=True)
    ]
    if max(in_use) + joining > fleet.smallest_cache:
        for at, total in enumerate(fleet.total_blocks):
            if (missing := in_use[at] + joining - total) > 0:
                crowding[at] += missing * fleet.block_size
    return crowding


def held_blocks(prompt_tokens: int, fleet: Fleet, overlaps: Overlaps, config: CostConfig) -> list[float]:
    """Cached blocks of the prompt, weighted by tier, rounded down to a whole token and at most the whole prompt."""
    held: list[float] = [*overlaps.device]
    if overlaps.lower:
        count, external, block = len(held), config.external_weight, fleet.block_size
        hosts, disks = overlaps.weights or ([config.host_weight] * count, [config.disk_weight] * count)
        held = [
            min(prompt_tokens, int((device + (host * in_host + disk * on_disk) + external * outside) * block)) / block
            for device, in_host, on_disk, outside, host, disk in zip(
                overlaps.device, *overlaps.lower, hosts, disks, strict=True
            )
        ]
    elif not any(held):
        return [0.0] * len(fleet.workers)
    slots = fleet.slots(overlaps.workers)
    return held if slots is None else [held[slot] if slot >= 0 else 0 for slot in slots]


def _waiting_behind_own_prefix(
    held: list[float], cached: list[float], fleet: Fleet, loads: Loads, config: CostConfig
) -> list[float]:
    """The waiting column when some of the waiting tokens are this prompt's own prefix, computed for another request.

    On average half of that prefix will have been computed when this prompt arrives: that half does not count.
    """
    half, block, busy = min(1.0, config.overlap_weight) / 2, float(fleet.block_size), config.pass_tokens
    return [
        tokens - half * (coming if (coming := (will - here) * block) < tokens else tokens) + busy if tokens else 0.0
        for tokens, will, here in zip(loads.prefill_tokens, cached, held, strict=True)
    ]


def _spreading(traffic: list[float], mean: float, fleet: Fleet, loads: Loads, config: CostConfig) -> list[float]:
    """Recent traffic, and up to one batch of what exceeds a fair share: long prompts stay where they are cached."""
    fair = config.tolerance * mean
    if max(traffic) <= fair + fleet.smallest_batch / TRAFFIC_UNIT:
        return traffic
    spreading = traffic[:]
    for at, recent in enumerate(traffic):
        batch = fleet.batch_tokens[at]
        lead = (recent - fair) * TRAFFIC_UNIT - batch
        # A worker without requests has no lead: a lone long conversation must not wander.
        if lead > 0 and loads.requests[at]:
            spreading[at] += min(lead, batch)
    return spreading
