"""Which router rule is best on recorded traffic: `dynamo rules TRACE…`, each simulated on the same fleet.

A trace is a folder of agent sessions, Mooncake's rows, Azure's CSV or a request trace that a frontend wrote.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.experiment import ReportFiles, configure_logs, experiment
from dynamo.lab.rules.scoreboard import BUILT_IN, Score, optimum, scored, scores_json, scores_page, scores_text
from dynamo.lab.simulate.agents import AgentTraffic, read_agents
from dynamo.lab.simulate.simulation import SimulationConfig
from dynamo.lab.simulate.traces import FORMATS, format_of
from dynamo.lab.simulate.traffic import SimulatedRequest, scaled
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.choice.loaded_rule import load, shipped
from dynamo.router.config import RoutingConfig
from dynamo.settings import Setting, Settings, given
from dynamo.settings.arguments import FlagParser

COMMAND = "dynamo rules"
Count = Annotated[int, Meta(ge=1, le=10**9)]
_PARITY = {"all": None, "even": 0, "odd": 1}


class RulesSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "rules"

    # fmt: off
    rules: Annotated[tuple[str, ...], Setting(
        "--rule", metavar="FILE.py|NAME", help="a rule to try; may be repeated",
        default="built-in and all that are shipped")] = ()
    workers: Annotated[int, Meta(ge=1, le=4096), Setting("--num-workers", help="simulated workers")] = 4
    cache_tokens: Annotated[Count, Setting("--cache-tokens", help="tokens in the cache of each worker")] = 1 << 20
    block_size: Annotated[int, Meta(ge=0, le=1 << 20), Setting(
        "--block-size", help="tokens in a block of the simulated engine", default="the trace's")] = 0
    speedup: Annotated[float, Meta(gt=0), Setting(
        "--arrival-speedup-ratio", help="divides the times between arrivals, and pauses")] = 1.0
    limit: Annotated[int | None, Meta(ge=1), Setting(
        "--request-limit", help="requests to read; the rest is left out", default="all")] = None
    skip: Annotated[int, Meta(ge=0), Setting("--skip-requests", help="requests to leave out at the beginning")] = 0
    sessions: Annotated[int | None, Meta(ge=1), Setting(
        "--agent-sessions", help="agents: sessions to draw", default="all")] = None
    parity: Annotated[Literal["all", "even", "odd"], Setting(
        "--session-numbers", help="agents: which sessions, by the number in the file's name")] = "all"
    largest: Annotated[int | None, Meta(ge=1), Setting(
        "--largest-session", metavar="BYTES", help="agents: leave larger files out", default="none")] = None
    share_tools: Annotated[bool, Setting(
        "--share-tools", help="agents: sessions with as many tool and system tokens begin alike")] = False
    seed: Annotated[int, Meta(ge=0), Setting("--seed", help="of draws and starts")] = 0
    report_json: Annotated[str | None, Setting("--report-json", metavar="FILE", help="write the scores there")] = None
    report_html: Annotated[str | None, Setting("--report-html", metavar="FILE", help="write a page there")] = None
    # fmt: on


def parser() -> FlagParser:
    made = FlagParser(COMMAND, __doc__, RulesSettings)
    made.add_argument("trace", nargs="+", help="recorded traffic")
    return made


def main(words: Sequence[str], _environ: Mapping[str, str] | None = None) -> None:
    with experiment(COMMAND):
        flags = vars(parser().parse_args(words))
        configure_logs(flags["verbosity"])
        asked = RulesSettings.from_env({}, **given(flags, RulesSettings))
        files = ReportFiles(asked.report_json, asked.report_html)
        rules = asked.rules or (BUILT_IN, *shipped())
        for rule in rules:
            if rule != BUILT_IN:
                load(rule)
        scores: list[Score] = []
        for trace in flags["trace"]:
            scores += score_trace(Path(trace), rules, asked)
        print(scores_text(scores))
        files.write(lambda: scores_json(scores), lambda: scores_page(scores))


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
