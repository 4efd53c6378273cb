"""Scores rules on one recorded trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.rules.scoreboard import Score, optimum, scored
from dynamo.lab.rules.settings import RulesSettings
from dynamo.lab.simulate.agents import AgentTraffic, read_agents
from dynamo.lab.simulate.simulation import SimulationConfig
from dynamo.lab.simulate.traces import FORMATS, format_of
from dynamo.lab.simulate.traffic import SimulatedRequest, scaled
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.config import RoutingConfig

_PARITY = {"all": None, "even": 0, "odd": 1}


def score_trace(path: Path, rules: Iterable[str], asked: RulesSettings) -> list[Score]:
    requests = list(_traffic(path, asked))
    if not requests:
        raise InvalidArgument(f"{path} has no request that can be replayed")
    size = asked.block_size or requests[0].block_size
    config = SimulationConfig(
        workers=asked.workers,
        engine=MockerArgs(block_size=size, num_gpu_blocks=max(1, asked.cache_tokens // size)),
        routing=RoutingConfig(mode="kv"),
        seed=asked.seed,
    )
    best = optimum(requests, size)
    traffic: Callable[[], Iterable[SimulatedRequest]] = partial(scaled, requests, 1, asked.speedup)
    found = []
    for rule in rules:
        found.append(scored(path.name, config, traffic, rule, best))
        print(f"{path.name}: {rule}, TTFT {found[-1].ttft_ms:.1f} ms", file=sys.stderr, flush=True)
    return found


def _traffic(path: Path, asked: RulesSettings) -> Iterable[SimulatedRequest]:
    if not path.exists():
        raise ValueError(f"there is no trace {path}")
    kind = format_of(path)
    if kind == "agents":
        agents = AgentTraffic(
            largest=asked.largest,
            parity=_PARITY[asked.parity],
            sessions=asked.sessions,
            share_tools=asked.share_tools,
            seed=asked.seed,
        )
        requests = read_agents(path, agents)
    else:
        requests = FORMATS[kind](path, 512 if kind == "mooncake" else 64)
    end = None if asked.limit is None else asked.skip + asked.limit
    first = 0.0
    for number, request in enumerate(islice(requests, asked.skip, end)):
        first = request.at or 0.0 if not number else first
        yield request if request.at is None else structs.replace(request, at=request.at - first)
