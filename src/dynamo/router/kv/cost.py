"""What it costs to send a prompt to each worker, and the choice of the cheapest. docs/routing.md explains the rule.

Costs are in prompt tokens: what the fleet could have computed instead.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from operator import sub

from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument, Unavailable
from dynamo.router.kv.index import Overlap
from dynamo.router.kv.load import Loads
from dynamo.router.kv.slots import Worker

_NOTHING = Overlap()
_LITTLE = 1024.0
"""Tokens of traffic per worker below which nobody has a share to speak of."""


class CostConfig(Struct, frozen=True, kw_only=True):
    overlap_weight: float = 1.0
    """How much cached blocks count; 0 looks at load alone."""
    temperature: float = 0.0
    """0 takes the cheapest; above it, chance grows with cost differences softened."""
    host_weight: float = 0.75
    disk_weight: float = 0.25
    external_weight: float = 0.25
    pass_tokens: float = 640.0
    """What it costs to come to a worker that is computing a prompt, whatever its length: its pass must end first."""
    crowding: float = 4096.0
    """What a worker with all its blocks in use costs, in tokens."""
    tolerance: float = 1.25
    """How far above the mean a worker's recent traffic may lie before prompts are moved away from it."""

    def __post_init__(self) -> None:
        weights = ("overlap_weight", "host_weight", "disk_weight", "external_weight")
        for name in (*weights, "temperature", "pass_tokens", "crowding"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")
        if not 1 <= self.tolerance < math.inf:
            raise InvalidArgument(f"tolerance must be a finite number of at least 1, not {self.tolerance}")


class Capacity(Struct, frozen=True, kw_only=True):
    """What a worker's card says of its size; None where it says nothing."""

    total_blocks: int | None = None
    max_batched_tokens: int | None = None


class Fleet:
    """The candidates with their sizes, laid out once per change of membership and not once per request."""

    def __init__(self, capacities: Mapping[Worker, Capacity], block_size: int) -> None:
        if block_size < 1:
            raise InvalidArgument(f"block size must be at least 1, not {block_size}")
        self.block_size = block_size
        self.workers = list(capacities)
        self.at = {worker: at for at, worker in enumerate(self.workers)}
        # A card that says nothing stands for 256k tokens of cache and batches of 8k.
        self.total_blocks = [size.total_blocks or (1 << 18) // block_size for size in capacities.values()]
        self.batch_tokens = [size.max_batched_tokens or 8192 for size in capacities.values()]
        self._crowding: tuple[float, list[float]] = (0.0, [0.0] * len(self.workers))
        self.smallest_batch = min(self.batch_tokens, default=0)

    def crowding(self, full: float) -> list[float]:
        """What each block in use costs per worker, when all of them together cost `full`."""
        if self._crowding[0] != full:
            self._crowding = (full, [full / total for total in self.total_blocks])
        return self._crowding[1]


class Candidate(Struct, frozen=True, kw_only=True):
    """One worker as the choice saw it. The parts add up to `cost`."""

    worker: Worker
    overlap: Overlap
    cached_blocks: float
    """Overlap by weight of its tier, or what is being computed there for another request if that is more."""
    prefill_tokens: int
    """What this prompt would have to compute there."""
    waiting_tokens: int
    decode_blocks: int
    """Blocks in use there once this prompt has joined."""
    requests: int
    cost: float
    work: float
    waiting: float
    crowding: float
    spreading: float


class Choice(Struct, kw_only=True):
    """The worker chosen, with everything that led to it."""

    worker: Worker
    at: int
    prompt_tokens: int
    prompt_blocks: int
    costs: list[float]
    draw: float | None
    """The random number behind a choice by temperature or among equals; None when there was nothing to draw."""
    fleet: Fleet
    loads: Loads
    overlaps: Mapping[Worker, Overlap]
    config: CostConfig

    @property
    def overlap(self) -> Overlap:
        """What the chosen worker has cached of the prompt."""
        return self.overlaps.get(self.worker, _NOTHING)

    @property
    def prefill_tokens(self) -> int:
        """What the chosen worker has to compute."""
        return max(0, self.prompt_tokens - int(self._cached(self.at) * self.fleet.block_size))

    @property
    def chosen(self) -> Candidate:
        return self.candidate(self.at)

    def candidates(self) -> list[Candidate]:
        return [self.candidate(at) for at in range(len(self.costs))]

    def candidate(self, at: int) -> Candidate:
        overlap = self.overlaps.get(self.fleet.workers[at], _NOTHING)
        cached = max(_credit(self.config, overlap), self.loads.shared_blocks[at])
        prefill = max(0, self.prompt_tokens - int(cached * self.fleet.block_size))
        work, waiting, crowding, spreading = self._parts(at, prefill)
        return Candidate(
            worker=self.fleet.workers[at],
            overlap=overlap,
            cached_blocks=cached,
            prefill_tokens=prefill,
            waiting_tokens=self.loads.prefill_tokens[at],
            decode_blocks=self._decode_blocks(at),
            requests=self.loads.requests[at],
            cost=self.costs[at],
            work=work,
            waiting=waiting,
            crowding=crowding,
            spreading=spreading,
        )

    @property
    def best_overlap(self) -> Candidate:
        """Who holds most of the prompt; the chosen one among equals."""
        at = max(range(len(self.costs)), key=lambda at: (self._cached(at), at == self.at))
        return self.candidate(at)

    @property
    def passed_over(self) -> str | None:
        """Why the worker that holds most of the prompt was not chosen; None when it was."""
        best, chosen = self.best_overlap, self.chosen
        if best.worker == chosen.worker:
            return None
        more = best.cached_blocks - chosen.cached_blocks
        head = f"worker {best.worker.worker_id} rank {best.worker.dp_rank} holds {more:g} blocks more"
        if best.cost <= chosen.cost:
            return f"{head} and costs no more: the draw went elsewhere"
        reasons = {
            f"{best.waiting_tokens} prompt tokens wait there": best.waiting - chosen.waiting,
            f"{best.decode_blocks} of its blocks are in use": best.crowding - chosen.crowding,
            "it has had more than its share of the traffic": best.spreading - chosen.spreading,
            "computing there delays others more": best.work - chosen.work,
        }
        return f"{head}, but {max(reasons, key=lambda reason: reasons[reason])}"

    def _cached(self, at: int) -> float:
        held = _credit(self.config, self.overlaps.get(self.fleet.workers[at], _NOTHING))
        return max(held, self.loads.shared_blocks[at])

    def _decode_blocks(self, at: int) -> int:
        return self.loads.active_blocks[at] + self.prompt_blocks - self.loads.shared_blocks[at]

    def _parts(self, at: int, prefill: float) -> tuple[float, float, float, float]:
        loads, fleet = self.loads, self.fleet
        mean = _mean(loads.traffic)
        work = self.config.overlap_weight * prefill * (1 + min(1.0, loads.traffic[at] / mean))
        decode = self._decode_blocks(at)
        crowding = decode * fleet.crowding(self.config.crowding)[at]
        spreading = loads.traffic[at] / 1024 + _lead(self.config, fleet, loads, mean, at) * self.prompt_tokens
        booked = loads.prefill_tokens[at]
        return work, booked + self.config.pass_tokens if booked else 0.0, crowding, spreading


def choose(
    prompt_tokens: int,
    prompt_blocks: int,
    fleet: Fleet,
    overlaps: Mapping[Worker, Overlap],
    loads: Loads,
    config: CostConfig,
    rng: random.Random,
) -> Choice:
    """The cheapest worker; equals, and with a temperature all, by chance."""
    if not fleet.workers:
        raise Unavailable("no worker to choose from")
    costs = _costs(prompt_tokens, prompt_blocks, fleet, overlaps, loads, config)
    at, draw = _pick(costs, config.temperature, rng)
    return Choice(
        worker=fleet.workers[at],
        at=at,
        prompt_tokens=prompt_tokens,
        prompt_blocks=prompt_blocks,
        costs=costs,
        draw=draw,
        fleet=fleet,
        loads=loads,
        overlaps=overlaps,
        config=config,
    )


def _costs(
    prompt_tokens: int,
    prompt_blocks: int,
    fleet: Fleet,
    overlaps: Mapping[Worker, Overlap],
    loads: Loads,
    config: CostConfig,
) -> list[float]:
    # Only a few different depths occur among many workers: what is left to compute is worked out once for each.
    left: dict[int | Overlap, float] = {
        held: _left(prompt_tokens, _credit(config, held), fleet, config) for held in {*overlaps.values()}
    }
    work = [_left(prompt_tokens, 0, fleet, config)] * len(fleet.workers)
    place = fleet.at.get
    for worker, held in overlaps.items():
        if (at := place(worker)) is not None:
            work[at] = left[held]
    if any(loads.shared_blocks):
        for depth in {*loads.shared_blocks}:
            left[depth] = _left(prompt_tokens, depth, fleet, config)
        active = [left[depth] for depth in loads.shared_blocks]
        work = [here if here < there else there for here, there in zip(work, active, strict=True)]
    mean = _mean(loads.traffic)
    per_mean, near, busy = 1 / mean, 1 / 1024, config.pass_tokens
    used = loads.active_blocks
    if any(loads.shared_blocks):
        used = list(map(sub, used, loads.shared_blocks))
    costs = [
        tokens * (1 + traffic * per_mean if traffic < mean else 2)
        + (waiting + busy if waiting else 0)
        + (blocks + prompt_blocks) * crowding
        + traffic * near
        for tokens, waiting, blocks, traffic, crowding in zip(
            work, loads.prefill_tokens, used, loads.traffic, fleet.crowding(config.crowding), strict=True
        )
    ]
    # Nobody below this is ahead of the others.
    ahead = config.tolerance * mean + fleet.smallest_batch
    if max(loads.traffic) > ahead:
        for at, traffic in enumerate(loads.traffic):
            if traffic > ahead:
                costs[at] += _lead(config, fleet, loads, mean, at) * prompt_tokens
    return costs


def _left(prompt_tokens: int, cached_blocks: float, fleet: Fleet, config: CostConfig) -> float:
    return config.overlap_weight * max(0, prompt_tokens - int(cached_blocks * fleet.block_size))


def _credit(config: CostConfig, overlap: Overlap) -> float:
    lower = config.host_weight * overlap.host + config.disk_weight * overlap.disk
    return overlap.device + lower + config.external_weight * overlap.external


def _mean(traffic: list[float]) -> float:
    return max(_LITTLE, sum(traffic) / len(traffic))


def _lead(config: CostConfig, fleet: Fleet, loads: Loads, mean: float, at: int) -> float:
    """How often over a worker pays for the prompt anew, for being ahead of the others by more than one batch.

    A worker that serves nobody right now is not avoided: a lone long conversation must not wander.
    """
    if not loads.requests[at]:
        return 0.0
    slack = fleet.batch_tokens[at]
    return 2 * max(0.0, loads.traffic[at] - config.tolerance * mean - slack) / slack


def _pick(costs: list[float], temperature: float, rng: random.Random) -> tuple[int, float | None]:
    lowest = min(costs)
    span = max(costs) - lowest if temperature else 0.0
    if span:
        weights = [math.exp((lowest - cost) / (span * temperature)) for cost in costs]
        draw = rng.random()
        mark = draw * sum(weights)
        for at, weight in enumerate(weights):
            mark -= weight
            if mark < 0:
                return at, draw
        return costs.index(lowest), draw
    if costs.count(lowest) == 1:
        return costs.index(lowest), None
    tied = [at for at, cost in enumerate(costs) if cost == lowest]
    draw = rng.random()
    return tied[int(draw * len(tied))], draw
