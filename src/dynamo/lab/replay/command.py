"""Replay traffic on a simulated fleet, in virtual time: `python -m dynamo.replay [TRACE] --num-workers N`.

The router, the delivery and the workers' scheduler are the ones that serve; only the clock and the GPU are not real.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dynamo.lab.experiment import ReportFiles, configure_logs, experiment
from dynamo.lab.replay.inputs import simulation_of
from dynamo.lab.replay.settings import ReplaySettings, TrafficSettings
from dynamo.lab.simulate.page import as_page
from dynamo.lab.simulate.report import as_json, as_text
from dynamo.lab.simulate.simulation import simulate
from dynamo.lab.simulate.traffic import SimulatedRequest
from dynamo.router.config import RoutingConfig
from dynamo.settings import given
from dynamo.settings.arguments import FlagParser

COMMAND = "python -m dynamo.replay"
_PROGRESS_SECONDS = 0.5


def parser() -> FlagParser:
    made = FlagParser(COMMAND, __doc__, TrafficSettings, ReplaySettings, RoutingConfig)
    made.add_argument("trace", nargs="?", help="the trace to replay; without one, traffic is made up")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    with experiment(COMMAND):
        flags = _flags(words)
        configure_logs(flags["verbosity"])
        asked = ReplaySettings.from_env({}, **given(flags, ReplaySettings))
        runs = [simulation_of(flags)]
        runs += [
            simulation_of(_without_tuples(flags) | _given_flags(shlex.split(each)), each) for each in asked.against
        ]
        files = ReportFiles(asked.report_json, asked.report_html)
        reports = []
        for config, traffic in runs:
            reports.append(simulate(config, partial(_shown, traffic, config.name)))
            print(f"{config.name}: simulated in {reports[-1].wall_seconds:.1f} s", file=sys.stderr, flush=True)
        print(as_text(*reports))
        files.write(lambda: as_json(*reports), lambda: as_page(*reports))


def _flags(words: Sequence[str]) -> dict[str, Any]:
    flags: dict[str, Any] = vars(parser().parse_args(words))
    return flags


def _given_flags(words: Sequence[str]) -> dict[str, Any]:
    """Only what these words set."""
    return {name: value for name, value in _flags(words).items() if value is not None and name != "verbosity"}


def _without_tuples(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name != "against"}


def _shown(make: Callable[[], Iterable[SimulatedRequest]], name: str) -> Iterable[SimulatedRequest]:
    """On a terminal, show now and then how far it is."""
    shown, interactive = time.monotonic(), sys.stderr.isatty()
    for number, request in enumerate(make()):
        if interactive and time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            when = f", {request.at:,.0f} s of the trace" if request.at is not None else ""
            print(f"\r{name}: {number:,} requests{when}\x1b[K", end="", file=sys.stderr, flush=True)
        yield request
    if interactive:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
