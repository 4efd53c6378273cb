"""Which router rule is best on recorded traffic: `dynamo rules TRACE…`, each simulated on the same fleet.

A trace is a folder of agent sessions, Mooncake's rows, Azure's CSV or a request trace that a frontend wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamo.lab.experiment import ReportFiles, configure_logs, experiment
from dynamo.lab.rules.settings import RulesSettings
from dynamo.settings import given
from dynamo.settings.arguments import FlagParser

COMMAND = "dynamo rules"


def parser() -> FlagParser:
    made = FlagParser(COMMAND, __doc__, RulesSettings)
    made.add_argument("trace", nargs="+", help="recorded traffic")
    return made


def main(words: Sequence[str], _environ: Mapping[str, str] | None = None) -> None:
    with experiment(COMMAND):
        flags = vars(parser().parse_args(words))
        # Not before the words are read: --help needs no simulator.
        from dynamo.lab.rules.scoreboard import BUILT_IN, scores_json, scores_page, scores_text
        from dynamo.lab.rules.traces import score_trace
        from dynamo.router.choice.loaded_rule import load, shipped

        configure_logs(flags["verbosity"])
        asked = RulesSettings.from_env({}, **given(flags, RulesSettings))
        files = ReportFiles(asked.report_json, asked.report_html)
        rules = asked.rules or (BUILT_IN, *shipped())
        for rule in rules:
            if rule != BUILT_IN:
                load(rule)
        scores = []
        for trace in flags["trace"]:
            scores += score_trace(Path(trace), rules, asked)
        print(scores_text(scores))
        files.write(lambda: scores_json(scores), lambda: scores_page(scores))
