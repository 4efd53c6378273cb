"""How much of the traffic each placement rule finds cached, beside the best anyone could do. Pure simulation.

usage: PYTHONPATH=src python benchmarks/kv_placement.py [--seeds 5] [--first-seed 42] [--only NAME] [--rules ours,…]
           [--traces FOLDER [--session-numbers odd]]

The conversations are those of the end-to-end benchmark: 40 over 10 system prompts, 5 turns, canned history, staggered
starts, exponential thinking time. `optimum` is an upper bound for every rule and every cache size: each different block
has to be computed at least once somewhere, and an engine always computes the last token of a prompt again.

The rules of peers are those that are shipped as files. They make no copies ahead here. With `--traces`, recorded
traffic follows, as `dynamo rules` replays it: a folder with `agents/`, `mooncake/` and `azure/`, as published.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from dynamo.engines.mocker import MockerArgs
from dynamo.kv.index.index import Index
from dynamo.kv.index.overlaps import Overlap
from dynamo.kv.messages import RouterEvent, WorkerRank
from dynamo.lab.rules.scoreboard import BUILT_IN, scores_text
from dynamo.lab.rules.settings import RulesSettings
from dynamo.lab.rules.traces import score_trace
from dynamo.router.choice.choose import Choice, choose
from dynamo.router.choice.copies import LEAST_SHARING, LEAST_TOKENS, RecentCopies, idle_candidates
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.choice.loaded_rule import load, shipped
from dynamo.router.load_book import LoadBook
from kv_fleet import Asked, Prompt, SimWorker

BLOCK = 64
ANSWER = 32
TEMPLATE = 6
"""Tokens a chat template puts around one message."""


@dataclass(frozen=True)
class Variant:
    name: str
    blocks: int
    speed: float = 1.0
    stagger: float = 0.1
    think: float = 0.5
    system_tokens: int = 1500
    systems: int = 10
    convs: int = 40
    turns: int = 5
    workers: int = 4


VARIANTS = [
    Variant("ample, speed 1", 16384),
    Variant("256 blocks, speed 1, stagger .02, think .2", 256, stagger=0.02, think=0.2),
    Variant("ample, speed 0.25", 16384, speed=0.25),
    Variant("256 blocks, speed 0.25", 256, speed=0.25),
    Variant("1024 blocks, speed 0.25, 6000-token systems", 1024, speed=0.25, system_tokens=6000),
    Variant("one shared 6000-token prompt, 8 workers", 16384, system_tokens=6000, systems=1, workers=8),
    Variant("same shared prompt, 40 conversations of 25 turns", 16384, 1.0, 0.1, 0.5, 6000, 1, 40, 25, 8),
    Variant("same shared prompt, ten times as long", 16384, 1.0, 0.1, 0.5, 6000, 1, 400, 5, 8),
    Variant("same shared prompt, 400 conversations", 16384, 1.0, 0.01, 0.5, 6000, 1, 400, 5, 8),
    Variant("same shared prompt, 160 conversations, speed 0.25", 16384, 0.25, 0.05, 0.5, 6000, 1, 160, 5, 8),
    Variant("same shared prompt, 80 conversations of 15 turns, speed 0.25", 16384, 0.25, 0.1, 0.5, 6000, 1, 80, 15, 8),
    Variant("one agent with a 60k-token context, 8 workers", 16384, 1.0, 0.1, 1.0, 60000, 1, 1, 40, 8),
    Variant("300 different prompts of 3000 tokens", 16384, 1.0, 0.02, 0.5, 3000, 300, 300, 1, 4),
    Variant("100 systems of 3000 tokens, 1024 blocks, 8 workers", 1024, 1.0, 0.03, 0.5, 3000, 100, 300, 5, 8),
]

Rule = Callable[["Router", Prompt, float], "Picked"]


@dataclass(frozen=True)
class Picked:
    number: int
    prefill_tokens: int
    """To be booked there as waiting to be computed."""
    choice: Choice | None = None
    """The choice of a rule that makes copies."""


class Router:
    """What every rule may look at: the index fed by events, and the load book."""

    def __init__(self, variant: Variant, seed: int) -> None:
        self.variant = variant
        self.index = Index()
        self.book = LoadBook()
        self.workers = [WorkerRank(number) for number in range(variant.workers)]
        size = Capacity(total_blocks=variant.blocks, max_batched_tokens=MockerArgs().max_num_batched_tokens)
        self.fleet = Fleet(dict.fromkeys(self.workers, size), BLOCK)
        for worker in self.workers:
            self.book.add_worker(worker)
        self.rng = random.Random(seed)
        self.turn = itertools.count()
        self.homes: dict[int, int] = {}
        """The worker of each system prompt, by its first block."""

    def least(self, costs: list[float], prompt: Prompt) -> Picked:
        best = min(costs)
        return self.uncached(self.rng.choice([number for number, cost in enumerate(costs) if cost == best]), prompt)

    def uncached(self, number: int, prompt: Prompt) -> Picked:
        held = self.index.match(prompt.chain).by_worker().get(self.workers[number], Overlap()).device
        return Picked(number, max(0, prompt.length - held * BLOCK))


def round_robin(router: Router, prompt: Prompt, now: float) -> Picked:
    return router.uncached(next(router.turn) % len(router.workers), prompt)


def one_home(router: Router, prompt: Prompt, now: float) -> Picked:
    """Each system prompt has one worker, in turn: nothing is computed twice, whatever the load."""
    home = router.homes.setdefault(prompt.chain[0], len(router.homes) % len(router.workers))
    return router.uncached(home, prompt)


def least_loaded(router: Router, prompt: Prompt, now: float) -> Picked:
    return router.least([float(n) for n in router.book.loads(router.workers, prompt.chain, now).requests], prompt)


def from_file(name: str) -> Rule:
    rule = load(name)

    def place(router: Router, prompt: Prompt, now: float) -> Picked:
        loads = router.book.loads(router.fleet.workers, prompt.chain, now)
        found = router.index.match(prompt.chain)
        choice = choose(
            prompt.length,
            len(prompt.chain),
            router.fleet,
            found,
            loads,
            CostConfig(),
            router.rng,
            rule,
            next(router.turn),
        )
        assert choice.rule, f"{name} failed: {rule.fallbacks}"
        return Picked(choice.at, choice.prefill_tokens)

    return place


def ours(router: Router, prompt: Prompt, now: float) -> Picked:
    loads = router.book.loads(router.fleet.workers, prompt.chain, now)
    found = router.index.match(prompt.chain)
    choice = choose(prompt.length, len(prompt.chain), router.fleet, found, loads, CostConfig(), router.rng)
    return Picked(choice.at, choice.prefill_tokens, choice)


RULES: dict[str, Rule] = {
    "round-robin": round_robin,
    "least-loaded": least_loaded,
    "one-home": one_home,
    **{name: from_file(name) for name in shipped() if name != "round-robin"},
    "ours": ours,
}


def conversations(variant: Variant, seed: int) -> list[tuple[list[Prompt], list[float]]]:
    rng = random.Random(seed)

    def text(words: int) -> list[int]:
        return rng.choices(range(3000), k=words) + [3000 + k for k in range(TEMPLATE)]

    systems = [text(variant.system_tokens) for _ in range(variant.systems)]
    made = []
    for number in range(variant.convs):
        tokens = list(systems[number % variant.systems])
        prompts = []
        for _ in range(variant.turns):
            tokens += text(50)
            prompts.append(Prompt.of(tokens, BLOCK))
            tokens += text(32)
        made.append((prompts, [rng.expovariate(1 / variant.think) for _ in range(variant.turns)]))
    rng.shuffle(made)
    return made


@dataclass
class Result:
    cached: float
    optimum: float
    ttft: list[float]
    tokens: list[int]
    copied: float
    """Tokens computed ahead, as a share of the prompts'."""

    @property
    def mean(self) -> float:
        return 1000 * statistics.fmean(self.ttft)

    @property
    def p99(self) -> float:
        return 1000 * sorted(self.ttft)[int(0.99 * len(self.ttft))]


class Simulation:
    """One workload under one rule, in virtual time."""

    def __init__(self, variant: Variant, rule: Rule, seed: int) -> None:
        self.router = Router(variant, seed)
        self.ttft: list[float] = []
        self.tokens = [0] * variant.workers
        self.cached_tokens = self.copied_tokens = 0
        self._rule = rule
        args = MockerArgs(block_size=BLOCK, num_gpu_blocks=variant.blocks, speedup_ratio=variant.speed, watermark=0)
        self._fleet = [SimWorker(number, args, self._publish) for number in range(variant.workers)]
        self._talks = conversations(variant, seed)
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._made = RecentCopies()
        for number in range(len(self._talks)):
            self._at(number * variant.stagger, partial(self._ask, number, 0))

    def run(self) -> Result:
        while self._agenda:
            now, _, what = heapq.heappop(self._agenda)
            what(now)
        prompts = [prompt for talk, _ in self._talks for prompt in talk]
        total = sum(prompt.length for prompt in prompts)
        cached, copied = self.cached_tokens / total, self.copied_tokens / total
        return Result(cached, optimum(prompts), self.ttft, self.tokens, copied)

    def _ask(self, number: int, turn: int, now: float) -> None:
        prompts, think = self._talks[number]
        prompt, name = prompts[turn], f"{number}.{turn}"
        picked = self._rule(self.router, prompt, now)
        self._book(name, picked.number, prompt, now, picked.prefill_tokens, prompt.length)

        def first(then: float) -> None:
            self.router.book.first_token(name)
            self.ttft.append(then - now)

        def end(then: float, cached: int) -> None:
            self.cached_tokens += cached
            self.tokens[picked.number] += prompt.length + ANSWER
            self.router.book.free(name)
            if turn + 1 < len(prompts):
                self._at(then + think[turn], partial(self._ask, number, turn + 1))

        self._send(picked.number, prompt, ANSWER, Asked(first, end), now)
        if picked.choice:
            self._copy(name, prompt, picked.choice, now)

    def _copy(self, name: str, prompt: Prompt, choice: Choice, now: float) -> None:
        """What router/kv/copies.py does with requests of its own."""
        depth, sharing = self.router.book.shared_prefix(name, LEAST_SHARING)
        if depth * BLOCK < LEAST_TOKENS:
            return
        prefix, last = Prompt(prompt.tokens[: depth * BLOCK], prompt.chain[:depth]), prompt.chain[depth - 1]
        for number, missing in idle_candidates(choice, depth, sharing, self._made.sent(last, now)):
            self._made.add(self.router.workers[number], last, now)
            self.copied_tokens += missing * BLOCK
            copy = f"copy {next(self._order)}"
            self._book(copy, number, prefix, now, missing * BLOCK, 0, extra=True)

            def first(then: float, copy: str = copy) -> None:
                self.router.book.first_token(copy)

            def end(then: float, cached: int, copy: str = copy) -> None:
                self.router.book.free(copy)

            self._send(number, prefix, 1, Asked(first, end), now)

    def _book(
        self,
        name: str,
        number: int,
        prompt: Prompt,
        now: float,
        prefill_tokens: int,
        prompt_tokens: int,
        *,
        extra: bool = False,
    ) -> None:
        self.router.book.reserve(
            name,
            self.router.workers[number],
            prompt.chain,
            now=now,
            prompt_tokens=prompt_tokens,
            prefill_tokens=prefill_tokens,
            extra=extra,
        )

    def _send(self, number: int, prompt: Prompt, length: int, asked: Asked, now: float) -> None:
        self._fleet[number].ask(next(self._order), prompt, length, asked)
        self._advance(self._fleet[number], now)

    def _advance(self, worker: SimWorker, now: float) -> None:
        iteration = worker.begin(now)
        if iteration is None:
            return

        def done(now: float) -> None:
            worker.finish(iteration)
            self._advance(worker, now)

        self._at(iteration.ends, done)

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), what))

    def _publish(self, event: RouterEvent) -> None:
        self.router.index.apply(event)


def simulate(variant: Variant, rule: Rule, seed: int) -> Result:
    return Simulation(variant, rule, seed).run()


def optimum(prompts: list[Prompt], block: int = BLOCK) -> float:
    """The largest share of the prompts' tokens that can be found cached."""
    usable = sum((prompt.length - 1) // block for prompt in prompts)
    distinct = {name for prompt in prompts for name in prompt.chain[: (prompt.length - 1) // block]}
    # A block that ends a prompt exactly is computed there in any case: others may find it at no cost.
    distinct -= {prompt.chain[-1] for prompt in prompts if prompt.chain and prompt.length % block == 0}
    return (usable - len(distinct)) * block / sum(prompt.length for prompt in prompts)


def spread(values: list[float]) -> str:
    """Mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.1f} ± {error:.1f}"


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--seeds", type=int, default=5)
    ap.add_argument("--first-seed", type=int, default=42)
    ap.add_argument("--only", default="")
    ap.add_argument("--rules", default=",".join(RULES))
    ap.add_argument("--traces", type=Path)
    ap.add_argument("--session-numbers", default="even", choices=("even", "odd", "all"))
    o = ap.parse_args()
    for variant in VARIANTS:
        if o.only not in variant.name:
            continue
        print(f"\n{variant.name}")
        found = {}
        for name in o.rules.split(","):
            rule = RULES[name]
            results = found[name] = [simulate(variant, rule, o.first_seed + seed) for seed in range(o.seeds)]
            cached = 100 * statistics.fmean(r.cached for r in results)
            low = 100 * min(r.cached for r in results)
            best = 100 * statistics.fmean(r.optimum for r in results)
            uneven = max(max(r.tokens) / statistics.fmean(r.tokens) for r in results)
            print(
                f"  {name:14} cached {cached:5.1f} % (worst {low:.1f}) of {best:.1f}   "
                f"TTFT {spread([r.mean for r in results])}, p99 {spread([r.p99 for r in results])} ms   "
                f"most tokens / mean {uneven:.2f}   "
                f"computed ahead {100 * statistics.fmean(r.copied for r in results):.1f} %",
                flush=True,
            )
        for name in [name for name in found if name != "ours" and "ours" in found]:
            pairs = list(zip(found["ours"], found[name], strict=True))
            mean, p99 = [a.mean - b.mean for a, b in pairs], [a.p99 - b.p99 for a, b in pairs]
            print(f"  ours - {name}: TTFT {spread(mean)}, p99 {spread(p99)} ms, seed by seed")
    if o.traces:
        rules = [{"ours": BUILT_IN}.get(name, name) for name in o.rules.split(",")]
        recorded(o.traces, [name for name in rules if name == BUILT_IN or name in shipped()], o.session_numbers)


def recorded(folder: Path, rules: list[str], numbers: Literal["all", "even", "odd"]) -> None:
    """Each kind of traffic at some loads. Agents: 40 sessions below 900 kB on 4 workers with 16,384 blocks of 64."""
    agents = [
        (speedup, RulesSettings(speedup=speedup, share_tools=share, sessions=40, largest=900_000, parity=numbers))
        for speedup in (1.2, 8, 15)
        for share in (False, True)
    ]
    rows = [(speedup, RulesSettings(speedup=speedup, limit=1500)) for speedup in (0.5, 1.0)]
    runs = [("agents", *each) for each in agents]
    runs += [("mooncake/conversation_trace.jsonl", *each) for each in rows]
    runs += [("mooncake/conversation_trace.jsonl", 8.0, RulesSettings(speedup=8.0, limit=3000, workers=64))]
    runs += [("azure/AzureLLMInferenceTrace_code.csv", *each) for each in rows]
    for path, speedup, asked in runs:
        shared = ", tools shared" if asked.share_tools else ""
        print(f"\n{speedup:g} times as fast{shared}, {asked.workers} workers")
        print(scores_text(score_trace(folder / path, rules, asked)), flush=True)


if __name__ == "__main__":
    main()
