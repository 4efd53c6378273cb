"""The life of the operator: look for its definitions, wait to lead, make graphs true, let another one lead."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal, KubernetesError, UnknownResource
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.kubernetes.operator.election import LeaderLease
from dynamo.kubernetes.operator.graphs import GraphController
from dynamo.kubernetes.operator.kinds import DEFINITIONS, GRAPHS
from dynamo.kubernetes.operator.models import AdapterController
from dynamo.protocols.errors import StartError
from dynamo.settings import Setting, Settings

log = logging.getLogger(__name__)

LEASE = "dynamo-operator"
OURS = "app.kubernetes.io/part-of"
PRODUCT = "dynamo-serving"


class OperatorSettings(Settings, frozen=True, kw_only=True):
    """The settings of `python -m dynamo.operator`."""

    # fmt: off
    all_namespaces: Annotated[bool, Setting(
        "--all-namespaces", "DYN_OPERATOR_ALL_NAMESPACES",
        "serve graphs of all namespaces; needs rights in the whole cluster")] = False
    watched_namespace: Annotated[str | None, Setting(
        "--watched-namespace", "DYN_OPERATOR_NAMESPACE", "serve graphs of this namespace", "NAME",
        default="the pod's own")] = None
    selector: Annotated[str, Setting(
        "--selector", "DYN_OPERATOR_SELECTOR", "serve only graphs with these labels", "LABELS", default="all")] = ""
    health_port: Annotated[int, Meta(ge=0, le=65535), Setting(
        "--health-port", "DYN_OPERATOR_HEALTH_PORT", "answer /live and /health for probes; 0: on no port",
        "PORT")] = 8081
    # fmt: on


async def serve(settings: OperatorSettings, environ: Mapping[str, str], stopped: asyncio.Event, host: str) -> None:
    """Until `stopped`, or a StartError when it cannot go on."""
    try:
        access = find_access(environ)
    except ClusterAccessError as error:
        raise StartError(str(error)) from error
    async with KubernetesApi(access) as api:
        namespace = "" if settings.all_namespaces else settings.watched_namespace or api.namespace
        await _check_definitions(api, namespace, settings)
        lease = LeaderLease(api, LEASE, f"{environ.get('POD_NAME') or socket.gethostname()}_{os.getpid()}")
        health = await _serve_health(host, settings.health_port) if settings.health_port else None
        controller = GraphController(api, namespace=namespace, labels=settings.selector)
        adapters = AdapterController(api, namespace=namespace)
        try:
            if await _unless(stopped, lease.acquire()):
                log.info(
                    "leading; serving graphs of %s", f"the namespace {namespace}" if namespace else "all namespaces"
                )
                try:
                    await _unless(stopped, _first(lease.keep(), controller.run(), adapters.run()))
                finally:
                    await lease.release()
                if not stopped.is_set():
                    raise StartError(f"the lease {LEASE} was lost to another operator; this one ends")
        finally:
            if health:
                await health.cleanup()


async def _check_definitions(api: KubernetesApi, namespace: str, settings: OperatorSettings) -> None:
    """Refuses to share graphs with another operator, whose definitions these are."""
    try:
        await api.list(GRAPHS, namespace=namespace)
    except UnknownResource:
        raise StartError(
            f"the cluster does not know {GRAPHS}: apply deploy/kubernetes/crds/ first (kubectl apply -f)"
        ) from None
    except KubernetesError as error:
        raise StartError(str(error)) from error
    try:
        definition: dict[str, Any] = await api.get(DEFINITIONS, str(GRAPHS), dict)
    except ApiRefusal:
        log.debug("no right to read %s: whose it is stays unknown", DEFINITIONS)
        return
    labels = definition["metadata"].get("labels") or {}
    if labels.get(OURS) != PRODUCT and not settings.selector:
        raise StartError(
            f"the definition of {GRAPHS} is another operator's, which would act on the same graphs: --selector"
            " LABEL=VALUE takes only those with a label of yours"
        )


async def _serve_health(host: str, port: int) -> web.AppRunner:
    """It lives and is ready as soon as it answers: who does not lead is a good operator too."""

    async def well(_: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    app = web.Application()
    app.router.add_get("/live", well)
    app.router.add_get("/health", well)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}; see --health-port") from error
    return runner


async def _first(*works: Any) -> None:
    """Until one of them ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unless(stopped: asyncio.Event, work: Any) -> bool:
    """Whether the work was done before somebody wanted an end."""
    await _first(stopped.wait(), work)
    return not stopped.is_set()
