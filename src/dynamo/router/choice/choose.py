"""Chooses a worker by cost, and explains the choice from the same columns."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from msgspec import Struct, structs

from dynamo.kv.index.overlaps import Overlap, Overlaps
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.errors import Unavailable
from dynamo.protocols.worker_name import worker_name
from dynamo.router.choice.cost import CostConfig, Costs, Kept, cost_columns, credit_session, held_blocks
from dynamo.router.choice.fleet import Fleet
from dynamo.router.choice.loaded_rule import LoadedRule
from dynamo.router.load_book import Loads
from dynamo.router.rules import Prompt, Worker

_NO_OVERLAP = Overlap()


class Candidate(Struct, frozen=True, kw_only=True):
    """One worker as the choice saw it. The four parts add up to `cost`."""

    worker: WorkerRank
    overlap: Overlap
    cached_blocks: float
    """Overlap weighted by tier, or the blocks being computed there for other requests if these are more."""
    prefill_tokens: int
    """Tokens of this prompt that the worker would have to compute."""
    waiting_tokens: int
    decode_blocks: int
    """Blocks in use there if this prompt joins."""
    requests: int
    cost: float
    work: float
    waiting: float
    crowding: float
    spreading: float


class Choice(Struct, kw_only=True):
    """The chosen worker and the inputs of the costs, which are computed again when asked for."""

    worker: WorkerRank
    at: int
    """Its index in `fleet.workers`."""
    prompt_tokens: int
    prompt_blocks: int
    cached_blocks: float
    """Blocks of the prompt that the chosen worker need not compute."""
    prefill_tokens: int
    """Tokens of the prompt that it has to compute."""
    draw: float | None
    """The random number that decided, with a temperature or among equal costs; None if none was drawn."""
    fleet: Fleet
    loads: Loads
    overlaps: Overlaps
    config: CostConfig
    rule: str = ""
    """The name of the rule that decided; empty for the built-in one."""
    kept: Kept | None = None
    """The candidate where the session's last turn ran."""
    recomputed: Costs | None = None

    @property
    def overlap(self) -> Overlap:
        """The blocks of the prompt that the chosen worker has cached."""
        return self._overlap(self.at)

    @property
    def costs(self) -> list[float]:
        return self._columns().total

    @property
    def chosen(self) -> Candidate:
        return self.candidate(self.at)

    def cached(self) -> list[float]:
        """Blocks of the prompt that each candidate need not compute."""
        return self._columns().cached

    def candidates(self) -> list[Candidate]:
        return [self.candidate(at) for at in range(len(self.fleet.workers))]

    def candidate(self, at: int) -> Candidate:
        columns, loads = self._columns(), self.loads
        return Candidate(
            worker=self.fleet.workers[at],
            overlap=self._overlap(at),
            cached_blocks=columns.cached[at],
            prefill_tokens=self.prompt_tokens - round(columns.cached[at] * self.fleet.block_size),
            waiting_tokens=int(loads.prefill_tokens[at]),
            decode_blocks=int(loads.active_blocks[at] + self.prompt_blocks - loads.shared_blocks[at]),
            requests=int(loads.requests[at]),
            cost=columns.total[at],
            work=columns.work[at],
            waiting=columns.waiting[at],
            crowding=columns.crowding[at],
            spreading=columns.spreading[at],
        )

    @property
    def best_overlap(self) -> Candidate:
        """The candidate that holds most of the prompt; the chosen one, if it holds as much."""
        cached = self.cached()
        return self.candidate(max(range(len(cached)), key=lambda at: (cached[at], at == self.at)))

    @property
    def passed_over(self) -> str | None:
        """Why the worker that holds most of the prompt was not chosen; None when it was."""
        best, chosen = self.best_overlap, self.chosen
        if best.worker == chosen.worker:
            return None
        more = best.cached_blocks - chosen.cached_blocks
        head = f"worker {worker_name(best.worker.worker_id)} rank {best.worker.dp_rank} holds {more:g} blocks more"
        if self.rule:
            return f"{head}, but the rule '{self.rule}' prefers another"
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
        return self.overlaps.at(slot) if slot >= 0 else _NO_OVERLAP

    def _columns(self) -> Costs:
        if self.recomputed is None:
            self.recomputed = cost_columns(
                self.prompt_tokens, self.prompt_blocks, self.fleet, self.overlaps, self.loads, self.config
            )
            if self.kept:
                credit_session(self.recomputed, self.kept, self.prompt_tokens, self.fleet.block_size)
        return self.recomputed


def choose(
    prompt_tokens: int,
    prompt_blocks: int,
    fleet: Fleet,
    overlaps: Overlaps,
    loads: Loads,
    config: CostConfig,
    rng: random.Random,
    rule: LoadedRule | None = None,
    number: int = 0,
    kept: Kept | None = None,
    session: str = "",
) -> Choice:
    """Choose the cheapest worker, at random among equals; with a temperature, at random by cost among all.

    `rule` says the costs, unless it fails; `number` is how many prompts were placed before. `kept` is the
    candidate that its session was at.
    """
    if not fleet.workers:
        raise Unavailable("no worker to choose from")
    ruled = None
    if rule:
        prompt = Prompt(
            tokens=prompt_tokens, blocks=prompt_blocks, block_size=fleet.block_size, number=number, session=session
        )
        ruled = _ruled(rule, prompt, fleet, overlaps, loads, config, kept)
    columns = ruled or cost_columns(prompt_tokens, prompt_blocks, fleet, overlaps, loads, config)
    if kept and not ruled:
        credit_session(columns, kept, prompt_tokens, fleet.block_size)
    at, draw = _pick(columns.total, config.temperature, rng)
    # The columns are not kept: few callers need these thousands of numbers, and keeping them would evict CPU caches.
    return Choice(
        worker=fleet.workers[at],
        at=at,
        prompt_tokens=prompt_tokens,
        prompt_blocks=prompt_blocks,
        cached_blocks=columns.cached[at],
        prefill_tokens=prompt_tokens - round(columns.cached[at] * fleet.block_size),
        draw=draw,
        fleet=fleet,
        loads=loads,
        overlaps=overlaps,
        config=config,
        rule=rule.name if rule and ruled else "",
        kept=kept,
        recomputed=ruled,
    )


def _ruled(
    rule: LoadedRule,
    prompt: Prompt,
    fleet: Fleet,
    overlaps: Overlaps,
    loads: Loads,
    config: CostConfig,
    kept: Kept | None,
) -> Costs | None:
    """The costs that a rule gives; None if it gives none."""
    none = [0.0] * len(fleet.workers)
    held, slots = held_blocks(prompt.tokens, fleet, overlaps, config), fleet.slots(overlaps.workers)
    cached = [max(here, used) for here, used in zip(held, loads.shared_blocks, strict=True)]
    tiers: list[Sequence[int]] = [overlaps.device, *overlaps.lower]
    if slots is not None:
        tiers = [[column[slot] if slot >= 0 else 0 for slot in slots] for column in tiers]
    tiers += [[0] * len(none)] * (4 - len(tiers))
    recent = [sent * loads.scale for sent in loads.sent]
    columns = (*tiers, cached, loads.shared_blocks, loads.prefill_tokens, loads.requests, loads.active_blocks,
               fleet.total_blocks, fleet.batch_tokens, recent)  # fmt: skip
    workers = list(map(Worker, *columns))
    if kept:
        workers[kept.at] = structs.replace(workers[kept.at], session_tokens=kept.tokens)
    costs = rule.costs(prompt, workers)
    return None if costs is None else Costs(cached, costs, none, none, none, costs)


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
