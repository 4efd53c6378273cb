"""Start and drain workers as the traffic needs them: `python -m dynamo.planner [--config FILE|JSON]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, structs

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.planner.act import LocalActor, VirtualActor, VirtualConnector
from dynamo.planner.act.kubernetes import kubernetes_actor
from dynamo.planner.announce import open_announcements
from dynamo.planner.config import PlannerConfig, read_config
from dynamo.planner.metrics import PlannerMetrics, serve_metrics
from dynamo.planner.observe import make_source
from dynamo.planner.parts import Actor
from dynamo.planner.planner import Planner
from dynamo.process.addresses import listening_address
from dynamo.process.readiness import report_ready
from dynamo.process.supervisor import Supervisor, read_deployment
from dynamo.process.supervisor.home import home_of
from dynamo.process.supervisor.output import PrefixedOutput
from dynamo.process.supervisor.supervisor import on_signals, unless_signalled
from dynamo.protocols.errors import StartError
from dynamo.runtime.discovery.etcd.config import EtcdConfig
from dynamo.runtime.logging import LogConfig, configure_dynamo_logging
from dynamo.runtime.process import fail
from dynamo.settings import Setting, Settings, given
from dynamo.settings.arguments import FlagParser

COMMAND = "python -m dynamo.planner"


class PlannerSettings(Settings, frozen=True, kw_only=True):
    """The settings beside the configuration: where its file is, and what Kubernetes says in its place."""

    # fmt: off
    config: Annotated[str | None, Setting(
        "--config", help="a file with JSON or YAML, or JSON itself; flags and variables beat it",
        metavar="FILE|JSON")] = None
    graph_deployment: Annotated[str | None, Setting(
        variables="DYN_PARENT_DGD_K8S_NAME", help="graph_deployment, if nothing else says it")] = None
    kubernetes_namespace: Annotated[str | None, Setting(
        variables="DYN_PARENT_DGD_K8S_NAMESPACE", help="kubernetes_namespace, if nothing else says it")] = None
    prometheus_endpoint: Annotated[str | None, Setting(
        variables="PROMETHEUS_ENDPOINT", help="metric_pulling_prometheus_endpoint, if nothing else says it")] = None
    prometheus_port: Annotated[Annotated[int, Meta(ge=0, le=65535)] | None, Setting(
        variables="PLANNER_PROMETHEUS_PORT", help="metric_reporting_prometheus_port, if nothing else says it")] = None
    # fmt: on

    def fill(self, config: PlannerConfig) -> PlannerConfig:
        return structs.replace(
            config,
            graph_deployment=config.graph_deployment or self.graph_deployment,
            kubernetes_namespace=config.kubernetes_namespace or self.kubernetes_namespace,
            metric_pulling_prometheus_endpoint=config.metric_pulling_prometheus_endpoint or self.prometheus_endpoint,
            metric_reporting_prometheus_port=(
                self.prometheus_port
                if config.metric_reporting_prometheus_port is None
                else config.metric_reporting_prometheus_port
            ),
        )


def parser() -> argparse.ArgumentParser:
    return FlagParser(COMMAND, __doc__, PlannerSettings, PlannerConfig)


def main(argv: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(argv)
    try:
        configure_dynamo_logging(LogConfig.from_env(os.environ, verbosity=parsed.verbosity))
        flags = vars(parsed)
        asked = PlannerSettings.from_env(os.environ, config=flags["config"])
        config = asked.fill(read_config(asked.config, os.environ, given(flags, PlannerConfig)))
        work = _PLANS[config.environment](config, os.environ)
    except (ValueError, StartError) as error:
        raise fail(str(error), code=2, error=error) from None
    try:
        asyncio.run(work)
    except StartError as error:
        raise fail(str(error), error=error) from None


async def plan_local(config: PlannerConfig, environ: Mapping[str, str]) -> None:
    """Run the deployment's processes, and scale its workers."""
    assert config.deployment
    deployment = read_deployment(Path(config.deployment))
    output = PrefixedOutput(sys.stdout, colour=sys.stdout.isatty() and not environ.get("NO_COLOR"))
    home = home_of(Path(config.deployment), environ)
    async with Supervisor(deployment, environ, output, home=home) as supervisor:
        signalled = on_signals(supervisor)
        actor = LocalActor(supervisor, config)
        try:
            # A planner that comes back finds as many workers as the last one wanted.
            await supervisor.adopt(all_of=True)
            await supervisor.start_all()
            if await unless_signalled(signalled, supervisor.until_ready()):
                await _plan(config, actor, signalled, environ)
            supervisor.say("draining all components; a second signal ends them at once")
        finally:
            # Beside those that the planner drains already.
            await asyncio.gather(supervisor.drain(), actor.close())


async def plan_virtual(config: PlannerConfig, environ: Mapping[str, str]) -> None:
    async with VirtualConnector(EtcdConfig.from_env(environ), config.namespace) as connector:
        await _plan(config, VirtualActor(connector, config), on_signals(None), environ)


async def plan_kubernetes(config: PlannerConfig, environ: Mapping[str, str]) -> None:
    async with KubernetesApi(find_access(environ), config.kubernetes_namespace) as api:
        await _plan(config, kubernetes_actor(api, config), on_signals(None), environ)


_PLANS = {"local": plan_local, "virtual": plan_virtual, "kubernetes": plan_kubernetes}


async def _plan(config: PlannerConfig, actor: Actor, signalled: asyncio.Event, environ: Mapping[str, str]) -> None:
    metrics = PlannerMetrics(config)
    host = config.metric_reporting_host or listening_address(environ)
    async with (
        serve_metrics(metrics, host, config.metric_reporting_prometheus_port) as port,
        open_announcements(config, environ) as announce,
    ):
        planner = Planner(config, make_source(config), actor, observer=metrics.observe, announce=announce)
        where = f", metrics on http://{host}:{port}/metrics" if port else ""
        print(f"planning every {config.load_adjustment_interval_seconds:g} s{where}", file=sys.stderr, flush=True)
        report_ready(environ)
        await unless_signalled(signalled, planner.run())


if __name__ == "__main__":
    main()
