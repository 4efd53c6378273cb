"""What it costs to send a prompt to each worker, and the choice of the cheapest. docs/routing.md explains the rule.

Costs are in prompt tokens: what the fleet could have computed instead.
"""

from __future__ import annotations

import math
import random
from operator import sub

from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument, Unavailable
from dynamo.protocols.kv import WorkerRank
from dynamo.router.kv.choice.fleet import Fleet
from dynamo.router.kv.index.overlaps import Overlap, Overlaps
from dynamo.router.kv.load.book import Loads

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
    request_tokens: float = 32.0
    """What each request costs that a worker is serving already: they share every step."""
    tolerance: float = 1.25
    """How far above the mean a worker's recent traffic may lie before prompts are moved away from it."""

    def __post_init__(self) -> None:
        weights = ("overlap_weight", "host_weight", "disk_weight", "external_weight")
        for name in (*weights, "temperature", "pass_tokens", "crowding", "request_tokens"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")
        if not 1 <= self.tolerance < math.inf:
            raise InvalidArgument(f"tolerance must be a finite number of at least 1, not {self.tolerance}")


class Candidate(Struct, frozen=True, kw_only=True):
    """One worker as the choice saw it. The parts add up to `cost`."""

    worker: WorkerRank
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
    """The worker chosen, and what led to it: the costs of all candidates are worked out again when somebody asks."""

    worker: WorkerRank
    at: int
    prompt_tokens: int
    prompt_blocks: int
    cached_blocks: float
    """What the chosen worker need not compute."""
    prefill_tokens: int
    """What it has to compute."""
    draw: float | None
    """The random number behind a choice by temperature or among equals; None when there was nothing to draw."""
    fleet: Fleet
    loads: Loads
    overlaps: Overlaps
    config: CostConfig
    weighed: _Weighed | None = None

    @property
    def overlap(self) -> Overlap:
        """What the chosen worker has cached of the prompt."""
        return self._overlap(self.at)

    @property
    def costs(self) -> list[float]:
        return self._weighed().costs

    @property
    def chosen(self) -> Candidate:
        return self.candidate(self.at)

    def cached(self) -> list[float]:
        """Blocks of the prompt that each candidate need not compute."""
        return self.weighed.cached if self.weighed else _cached(self.fleet, self.overlaps, self.loads, self.config)[0]

    def candidates(self) -> list[Candidate]:
        return [self.candidate(at) for at in range(len(self.fleet.workers))]

    def candidate(self, at: int) -> Candidate:
        weighed, fleet, loads, config = self._weighed(), self.fleet, self.loads, self.config
        traffic, mean, waiting = weighed.traffic[at], weighed.mean, weighed.waiting[at]
        prefill = _left(self.prompt_tokens, weighed.cached[at], fleet)
        decode = loads.active_blocks[at] + self.prompt_blocks - loads.shared_blocks[at]
        batch = fleet.batch_tokens[at]
        lead = 2 * max(0.0, traffic - config.tolerance * mean - batch) / batch if loads.requests[at] else 0.0
        return Candidate(
            worker=fleet.workers[at],
            overlap=self._overlap(at),
            cached_blocks=weighed.cached[at],
            prefill_tokens=prefill,
            waiting_tokens=int(loads.prefill_tokens[at]),
            decode_blocks=int(decode),
            requests=loads.requests[at],
            cost=weighed.costs[at],
            work=config.overlap_weight * prefill * (1 + min(1.0, traffic / mean)),
            waiting=waiting + config.pass_tokens if waiting else 0.0,
            crowding=decode * fleet.crowding(config.crowding)[at] + loads.requests[at] * config.request_tokens,
            spreading=traffic / 1024 + lead * self.prompt_tokens,
        )

    @property
    def best_overlap(self) -> Candidate:
        """Who holds most of the prompt; the chosen one among equals."""
        cached = self._weighed().cached
        return self.candidate(max(range(len(cached)), key=lambda at: (cached[at], at == self.at)))

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
            f"{best.requests} requests run there, with {best.decode_blocks} blocks in use": best.crowding
            - chosen.crowding,
            "it has had more than its share of the traffic": best.spreading - chosen.spreading,
            "computing there delays others more": best.work - chosen.work,
        }
        return f"{head}, but {max(reasons, key=lambda reason: reasons[reason])}"

    def _overlap(self, at: int) -> Overlap:
        slots = self.fleet.slots(self.overlaps.workers)
        slot = at if slots is None else slots[at]
        return self.overlaps.at(slot) if slot >= 0 else _NOTHING

    def _weighed(self) -> _Weighed:
        if self.weighed is None:
            self.weighed = _weigh(
                self.prompt_tokens, self.prompt_blocks, self.fleet, self.overlaps, self.loads, self.config
            )
        return self.weighed


class _Weighed(Struct):
    """The candidates' columns that follow from load and overlap."""

    cached: list[float]
    """Blocks of the prompt that need not be computed."""
    waiting: list[float]
    """Tokens to be computed before it, by weight."""
    traffic: list[float]
    mean: float
    costs: list[float]


def choose(
    prompt_tokens: int,
    prompt_blocks: int,
    fleet: Fleet,
    overlaps: Overlaps,
    loads: Loads,
    config: CostConfig,
    rng: random.Random,
) -> Choice:
    """The cheapest worker; equals, and with a temperature all, by chance."""
    if not fleet.workers:
        raise Unavailable("no worker to choose from")
    weighed = _weigh(prompt_tokens, prompt_blocks, fleet, overlaps, loads, config)
    at, draw = _pick(weighed.costs, config.temperature, rng)
    # Thousands of numbers, which few will ask for and which can be had again: not kept, so that memory stays warm.
    return Choice(
        worker=fleet.workers[at],
        at=at,
        prompt_tokens=prompt_tokens,
        prompt_blocks=prompt_blocks,
        cached_blocks=weighed.cached[at],
        prefill_tokens=_left(prompt_tokens, weighed.cached[at], fleet),
        draw=draw,
        fleet=fleet,
        loads=loads,
        overlaps=overlaps,
        config=config,
    )


def _weigh(
    prompt_tokens: int, prompt_blocks: int, fleet: Fleet, overlaps: Overlaps, loads: Loads, config: CostConfig
) -> _Weighed:
    cached, waiting = _cached(fleet, overlaps, loads, config)
    work = _work(prompt_tokens, cached, fleet, config, whole=not overlaps.lower)
    columns = loads.traffic
    mean = max(_LITTLE, sum(columns) / len(columns))
    per_mean, near, joining = 1 / mean, 1 / 1024, float(prompt_blocks)
    busy, beside = config.pass_tokens, config.request_tokens
    shared = loads.shared_blocks
    used = list(map(sub, loads.active_blocks, shared)) if any(shared) else loads.active_blocks
    costs = [
        tokens * (1.0 + traffic * per_mean if traffic < mean else 2.0)
        + (before + busy if before else 0.0)
        + ((blocks + joining) * crowding + requests * beside)
        + traffic * near
        for tokens, before, blocks, requests, traffic, crowding in zip(
            work, waiting, used, loads.requests, columns, fleet.crowding(config.crowding), strict=True
        )
    ]
    fair = config.tolerance * mean
    # Nobody below this is ahead of the others; and who serves nobody right now is not avoided for having been busy: a
    # lone long conversation must not wander.
    ahead = fair + fleet.smallest_batch
    if max(columns) > ahead:
        requests, batches = loads.requests, fleet.batch_tokens
        for at, traffic in enumerate(columns):
            if traffic > ahead and requests[at] and (over := traffic - fair - batches[at]) > 0:
                costs[at] += 2 * over / batches[at] * prompt_tokens
    return _Weighed(cached, waiting, columns, mean, costs)


def _cached(fleet: Fleet, overlaps: Overlaps, loads: Loads, config: CostConfig) -> tuple[list[float], list[float]]:
    """Blocks that each candidate need not compute for this prompt, and the tokens it must compute before.

    What another request has in use counts as cached. Where it is only being computed, it is the prompt's own beginning
    that must be waited for, half of which will be done on average: that half does not count as waiting.
    """
    waiting = loads.prefill_tokens
    shared = loads.shared_blocks if any(loads.shared_blocks) else None
    held = _held(fleet, overlaps, config)
    if shared is None:
        return held, waiting
    half, block = min(1.0, config.overlap_weight) / 2, fleet.block_size
    if half and any(waiting):
        waiting = [
            tokens - half * (coming if (coming := (used - here) * block) < tokens else tokens)
            if used > here
            else tokens
            for tokens, used, here in zip(waiting, shared, held, strict=True)
        ]
    return [here if here > used else used for here, used in zip(held, shared, strict=True)], waiting


def _held(fleet: Fleet, overlaps: Overlaps, config: CostConfig) -> list[float]:
    """What the candidates have cached, by weight of its tier."""
    held: list[float] = [*overlaps.device]
    if overlaps.lower:
        host, disk, external = config.host_weight, config.disk_weight, config.external_weight
        held = [
            device + (host * near + disk * below) + external * far
            for device, near, below, far in zip(overlaps.device, *overlaps.lower, strict=True)
        ]
    elif not any(held):
        return [0.0] * len(fleet.workers)
    slots = fleet.slots(overlaps.workers)
    return held if slots is None else [held[slot] if slot >= 0 else 0 for slot in slots]


def _work(prompt_tokens: int, cached: list[float], fleet: Fleet, config: CostConfig, *, whole: bool) -> list[float]:
    """What is left to compute per candidate, by weight. `whole` blocks are the usual case, and the quicker one."""
    weight, block = config.overlap_weight, fleet.block_size
    different = {*cached}
    if whole and len(different) > 16:
        return [weight * (prompt_tokens - blocks * block) for blocks in cached]
    left = {blocks: weight * _left(prompt_tokens, blocks, fleet) for blocks in different}
    if len(left) == 1:
        return [*left.values()] * len(cached)
    return [left[blocks] for blocks in cached]


def _left(prompt_tokens: int, cached_blocks: float, fleet: Fleet) -> int:
    return max(0, prompt_tokens - int(cached_blocks * fleet.block_size))


def _pick(costs: list[float], temperature: float, rng: random.Random) -> tuple[int, float | None]:
    lowest = min(costs)
    spread = (max(costs) - lowest) * temperature if temperature else 0.0
    if spread:
        weights = [math.exp((lowest - cost) / spread) for cost in costs]
        draw = rng.random()
        mark = draw * sum(weights)
        for at, weight in enumerate(weights):
            mark -= weight
            if mark < 0:
                return at, draw
        return costs.index(lowest), draw
    first = costs.index(lowest)
    if lowest not in costs[first + 1 :]:
        return first, None
    tied = [at for at, cost in enumerate(costs) if cost == lowest]
    draw = rng.random()
    return tied[int(draw * len(tied))], draw
