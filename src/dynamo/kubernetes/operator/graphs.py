"""Makes graphs true: follows them and what belongs to them, and applies the difference."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal, Conflict, KubernetesError, ObjectNotFound
from dynamo.kubernetes.graph import GraphError
from dynamo.kubernetes.operator.applied import AppliedObjects
from dynamo.kubernetes.operator.cache import Key, WatchedKind, by_label, itself
from dynamo.kubernetes.operator.kinds import ADAPTERS, APPLIED, GRAPHS, SECRETS, name_of
from dynamo.kubernetes.operator.queue import DueKeys
from dynamo.kubernetes.operator.reconcile import MANAGER, GraphPlan, SeenGraph, adapter_name, plan_graph
from dynamo.kubernetes.operator.reports import Reporter
from dynamo.kubernetes.operator.status import failed_status, graph_status
from dynamo.kubernetes.render.objects import plane_secret
from dynamo.kubernetes.render.target import GRAPH_LABEL
from dynamo.kubernetes.resources import DEPLOYMENTS, PODS, STATEFUL_SETS

log = logging.getLogger(__name__)

_AGAIN = 600.0
"""Seconds after which everything is applied again, for those objects that nobody watches."""


class GraphController:
    """One for all graphs of its namespaces. `namespace` "" means all of them, None that of the API's access."""

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None, labels: str = "") -> None:
        self._api = api
        self._due = DueKeys()
        self._applied = AppliedObjects()
        self._reporter = Reporter(api)
        self._secrets: set[Key] = set()
        touched, label = self._due.add, by_label(GRAPH_LABEL)
        self._graphs = WatchedKind(api, GRAPHS, itself, touched, namespace=namespace, labels=labels)
        self._adapters = WatchedKind(api, ADAPTERS, _adapted_graph, touched, namespace=namespace)
        self._deployments, self._sets, self._pods = (
            WatchedKind(api, resource, label, touched, namespace=namespace, labels=GRAPH_LABEL)
            for resource in (DEPLOYMENTS, STATEFUL_SETS, PODS)
        )

    async def run(self) -> None:
        watched = (self._graphs, self._adapters, self._deployments, self._sets, self._pods)
        async with asyncio.TaskGroup() as tasks:
            for each in watched:
                tasks.create_task(each.follow())
            for each in watched:
                await each.read.wait()
            tasks.create_task(self._apply_again())
            while True:
                key = await self._due.next()
                try:
                    await self._make_true(key)
                    self._due.succeeded(key)
                except KubernetesError as error:
                    log.warning("graph %s: %s; trying again", key[1], error)
                    self._due.failed(key)

    async def _apply_again(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN)
            self._applied.forget()
            for key in self._graphs.objects:
                self._due.add(key)

    async def _make_true(self, key: Key) -> None:
        found = self._graphs.objects.get(key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return  # what it owns goes with it
        seen = SeenGraph(
            object=found,
            workloads=[*self._deployments.of(key), *self._sets.of(key)],
            adapters=list(self._adapters.of(key)),
            pods=list(self._pods.of(key)),
        )
        try:
            plan = plan_graph(seen)
        except GraphError as error:
            await self._reporter.status(GRAPHS, seen.object, failed_status(seen, "invalid_spec", str(error)))
            return
        try:
            await self._carry_out(plan, seen)
        except ExceptionGroup as errors:
            told = "; ".join(map(str, errors.exceptions))
            await self._reporter.status(GRAPHS, seen.object, failed_status(seen, "refused", told))
            # What was refused stays so until the graph changes; a server in trouble is asked again.
            for each in errors.exceptions:
                if not isinstance(each, ApiRefusal):
                    raise each from None
            return
        await self._reporter.status(GRAPHS, seen.object, graph_status(plan, seen))
        await self._report_adapters(plan, seen)

    async def _carry_out(self, plan: GraphPlan, seen: SeenGraph) -> None:
        """Apply and remove; what is refused does not stop the rest, and is raised in the end."""
        failed: list[KubernetesError] = []
        await self._ensure_secret(plan)
        for wanted in plan.apply:
            watched = wanted["kind"] in ("Deployment", "StatefulSet")
            if self._applied.differs(wanted, self._seen(wanted), watched=watched):
                try:
                    await self._apply(wanted)
                except KubernetesError as error:
                    failed.append(type(error)(f"{wanted['kind']} {name_of(wanted)}: {error}"))
                    if not isinstance(error, ApiRefusal):
                        break
        if failed:
            raise ExceptionGroup("not all could be applied", failed)
        for each in plan.remove:
            await self._remove(each)

    async def _apply(self, wanted: Mapping[str, Any]) -> None:
        answer = await self._api.apply(
            APPLIED[wanted["kind"]], name_of(wanted), wanted, manager=MANAGER,
            namespace=wanted["metadata"]["namespace"],
        )  # fmt: skip
        self._applied.note(wanted, answer)

    async def _remove(self, found: Mapping[str, Any]) -> None:
        """A workload with the Service and the budget of its name, where these are of a generation that is over."""
        metadata = found["metadata"]
        names = [(APPLIED[found["kind"]], metadata["name"], metadata["uid"])]
        if found["kind"] == "Deployment":
            names += [(APPLIED[kind], metadata["name"], None) for kind in ("Service", "PodDisruptionBudget")]
        for resource, name, uid in names:
            try:
                await self._api.delete(
                    resource, name, uid=uid, namespace=metadata["namespace"], propagation="Background"
                )  # fmt: skip
            except (ObjectNotFound, Conflict):
                pass
        log.info("removed %s %s", found["kind"].lower(), metadata["name"])

    async def _ensure_secret(self, plan: GraphPlan) -> None:
        """Made once; whoever brings a Secret of the name keeps it."""
        key = (plan.target.namespace, plan.target.token_secret)
        if key in self._secrets:
            return
        try:
            await self._api.get(SECRETS, key[1], msgspec.Raw, namespace=key[0])
        except ObjectNotFound:
            try:
                await self._api.create(SECRETS, plane_secret(plan.target, secrets.token_hex(32)), namespace=key[0])
            except Conflict:
                pass
        self._secrets.add(key)

    def _seen(self, wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
        key = (wanted["metadata"]["namespace"], name_of(wanted))
        kinds = {"Deployment": self._deployments, "StatefulSet": self._sets}
        return kinds[wanted["kind"]].objects.get(key) if wanted["kind"] in kinds else None

    async def _report_adapters(self, plan: GraphPlan, seen: SeenGraph) -> None:
        """What autoscalers read of a scale subresource: how many there are, and which pods they are."""
        for component in plan.graph.spec.components:
            for adapter in seen.adapters:
                if name_of(adapter) == adapter_name(plan.graph, component):
                    selector = ",".join(
                        f"{key}={value}" for key, value in plan.target.labels(component).items() if "hash" not in key
                    )
                    status = {"replicas": plan.progress[component.name].made, "selector": selector}
                    await self._reporter.status(ADAPTERS, adapter, {**(adapter.get("status") or {}), **status})


def _adapted_graph(adapter: Mapping[str, Any]) -> Key | None:
    name = ((adapter.get("spec") or {}).get("dgdRef") or {}).get("name")
    return (adapter["metadata"]["namespace"], str(name)) if name else None
