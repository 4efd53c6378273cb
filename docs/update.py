"""Writes the help of dynamo-run and the tables of settings into the guides; `--check` only says what is out of date."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from dynamo.cli.run.help import help_text
from dynamo.engines.echo import EchoSettings
from dynamo.engines.llamacpp.args import LlamaCppArgs
from dynamo.engines.mocker import MockerArgs
from dynamo.frontend.measure.trace_sinks import TraceSettings, TraceSinkSettings
from dynamo.kubernetes.operator.life import OperatorSettings
from dynamo.lab.plan.command import PlanSettings
from dynamo.lab.replay.settings import ReplaySettings, TrafficSettings
from dynamo.model import AdapterConfig, FetchConfig, HubConfig, PullConfig, S3Config
from dynamo.planner import PlannerConfig
from dynamo.planner.__main__ import PlannerSettings
from dynamo.router.__main__ import StandaloneSettings
from dynamo.runtime.discovery.etcd.config import EtcdConfig
from dynamo.runtime.discovery.kubernetes.config import KubernetesSettings
from dynamo.runtime.logging import LogSettings
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.status import StatusConfig
from dynamo.runtime.tracing.export import ExportSettings, SpanSettings
from dynamo.settings import Option, options
from dynamo.settings.epp import EppSettings
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.network import NetworkSettings
from dynamo.settings.router import RouterSettings
from dynamo.settings.setting import one_of
from dynamo.settings.worker import StepTraceSettings, WorkerSettings
from dynamo.worker.several import SeveralSettings

TABLES = {
    "echo": (EchoSettings,),
    "epp": (EppSettings,),
    "etcd": (EtcdConfig,),
    "frontend": (FrontendSettings,),
    "hub": (HubConfig, FetchConfig),
    "adapters": (AdapterConfig, S3Config),
    "llamacpp": (LlamaCppArgs,),
    "kubernetes": (KubernetesSettings,),
    "logs": (LogSettings,),
    "models": (PullConfig,),
    "mocker": (SeveralSettings, MockerArgs),
    "nats": (NatsConfig,),
    "network": (NetworkSettings,),
    "operator": (OperatorSettings,),
    "planner": (PlannerSettings, PlannerConfig),
    "replay": (TrafficSettings, ReplaySettings),
    "plan": (PlanSettings,),
    "request trace": (TraceSettings, TraceSinkSettings),
    "router": (RouterSettings,),
    "standalone router": (StandaloneSettings,),
    "step trace": (StepTraceSettings,),
    "status": (StatusConfig,),
    "worker": (WorkerSettings,),
    "traces": (ExportSettings, SpanSettings),
}
MARKED = re.compile(r"<!-- settings: ([a-z ]+?)(?:, ([\w ]+))? -->\n.*?<!-- end -->", re.DOTALL)


def updated(guide: str) -> str:
    """A table stands between `<!-- settings: NAME -->`, or `NAME, GROUP` for a part of it, and `<!-- end -->`."""
    guide = re.sub(r"```text\nusage: .*?```", lambda _: f"```text\n{help_text()}```", guide, count=1, flags=re.DOTALL)
    return MARKED.sub(lambda found: _section(found[1], found[2]), guide)


def _section(name: str, group: str | None) -> str:
    chosen = [option for table in TABLES[name] for option in options(table)]
    if group:
        chosen = [option for option in chosen if option.group.partition(" (")[0] == group]
    marker = f"{name}, {group}" if group else name
    return "\n".join([f"<!-- settings: {marker} -->", *_rows(chosen), "<!-- end -->"])


def _rows(chosen: list[Option]) -> Iterable[str]:
    used = {"flag": any(option.flags for option in chosen), "variable": any(option.variables for option in chosen)}
    columns = [name for name in used if used[name]]
    yield f"| {' | '.join([*columns, 'default'])} | |"
    yield "|---" * (len(columns) + 2) + "|"
    for option in chosen:
        flags = (f"--[no-]{word[2:]}" if option.kind is bool else word for word in option.flags)
        cells = {"flag": _code(flags), "variable": _code(option.variables)}
        about = option.setting.help + (f": {one_of(option.choices)}" if option.choices else "")
        default = option.shown_default or ("required" if option.required else "none")
        yield f"| {' | '.join([*(cells[column] for column in columns), default, about])} |"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def main() -> None:
    stale = []
    for guide in sorted(Path(__file__).parent.glob("*.md")):
        before = guide.read_text()
        after = updated(before)
        if after != before:
            stale.append(guide.name)
            if "--check" not in sys.argv:
                guide.write_text(after)
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)} out of date: run `make docs`")


if __name__ == "__main__":
    main()
