"""How many workers a traffic needs, and with which settings: `dynamo plan [TRACE] --ttft-ms X --itl-ms Y`.

Fleets are simulated with the router and the scheduler that serve, until the smallest that meets the targets is found.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta, structs

from dynamo.lab.experiment import ReportFiles, configure_logs, experiment
from dynamo.lab.replay.settings import SimulationSettings, TrafficSettings
from dynamo.settings import Setting, given
from dynamo.settings.arguments import FlagParser
from dynamo.settings.router import RouterSettings

if TYPE_CHECKING:
    from dynamo.lab.plan.search import PlannedFleet

COMMAND = "dynamo plan"
Milliseconds = Annotated[float, Meta(gt=0, le=1e9)]


class PlanSettings(SimulationSettings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "plan"

    # fmt: off
    ttft_ms: Annotated[Milliseconds, Setting("--ttft-ms", help="longest time to the first token", metavar="MS")] = 500.0
    itl_ms: Annotated[Milliseconds, Setting(
        "--itl-ms", help="longest mean time between the tokens of a request", metavar="MS")] = 50.0
    share: Annotated[float, Meta(gt=0, le=1), Setting(
        "--share", help="of the requests that must meet both")] = 0.95
    most: Annotated[int, Meta(ge=1, le=100_000), Setting("--max-workers", help="try no larger fleet")] = 64
    disagg: Annotated[bool, Setting("--disagg", help="try prefill and decode workers too")] = False
    settings: Annotated[tuple[str, ...], Setting(
        "--try", metavar="FLAGS", help="router settings to try; may be repeated")] = (
        "--router-mode kv", "--router-mode round-robin")
    # fmt: on


def parser() -> FlagParser:
    made = FlagParser(COMMAND, __doc__, TrafficSettings, PlanSettings, RouterSettings)
    made.add_argument("trace", nargs="?", help="the traffic, as a trace; without one, it is made up")
    return made


def main(words: Sequence[str], _environ: Mapping[str, str] | None = None) -> None:
    with experiment(COMMAND):
        flags = vars(parser().parse_args(words))
        # Not before the words are read: --help needs no simulator.
        from dynamo.lab.plan.search import Targets, plan_fleet, plan_json, plan_page, plan_text
        from dynamo.lab.replay.inputs import simulation_of

        configure_logs(flags["verbosity"])
        asked = PlanSettings.from_env({}, **given(flags, PlanSettings))
        files = ReportFiles(asked.report_json, asked.report_html)
        runs = []
        for each in asked.settings:
            own = vars(parser().parse_args(shlex.split(each)))
            runs.append(simulation_of(flags | {name: value for name, value in own.items() if value}, each))
        fleets = [config for config, _ in runs]
        if asked.disagg:
            fleets += [
                structs.replace(config, prefill_workers=1, name=f"{config.name}, prefill + decode") for config in fleets
            ]
        targets = Targets(ttft_ms=asked.ttft_ms, itl_ms=asked.itl_ms, share=asked.share)
        plan = plan_fleet(fleets, runs[0][1], targets, asked.most, _show)
        print(plan_text(plan))
        files.write(lambda: plan_json(plan), lambda: plan_page(plan))
    if plan.best is None:
        raise SystemExit(1)


def _show(fleet: PlannedFleet) -> None:
    share = f"{100 * fleet.share_within:.1f} % within the targets"
    took = f"simulated in {fleet.report.wall_seconds:.1f} s"
    print(f"{fleet.settings}, {fleet.size} workers: {share}, {took}", file=sys.stderr, flush=True)
