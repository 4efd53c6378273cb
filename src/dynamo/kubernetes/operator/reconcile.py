"""Wanted minus seen: what is to be applied, and what is to go. Nothing here talks to a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dynamo.kubernetes.graph import Graph, GraphComponent, GraphError, read_graph_object
from dynamo.kubernetes.operator.kinds import ADAPTERS, labels_of, name_of
from dynamo.kubernetes.operator.progress import WorkloadProgress, progress_of
from dynamo.kubernetes.render import RenderTarget, render
from dynamo.kubernetes.render.target import COMPONENT_LABEL, HASH_LABEL, RESTARTED_AT, worker_generation

MANAGER = "dynamo-operator"

Object = dict[str, Any]
Seen = Mapping[str, Any]


class SeenGraph(Struct, frozen=True, kw_only=True):
    """A graph's object with everything that carries its label."""

    object: Seen
    workloads: Sequence[Seen] = ()
    adapters: Sequence[Seen] = ()
    pods: Sequence[Seen] = ()

    @property
    def status(self) -> Mapping[str, Any]:
        return self.object.get("status") or {}

    def of(self, component: GraphComponent, generation: str | None = None) -> list[Seen]:
        """A component's workloads, of one generation if it is given."""
        return [
            each for each in self.workloads
            if labels_of(each).get(COMPONENT_LABEL) == component.name
            and (generation is None or labels_of(each).get(HASH_LABEL, "") == generation)
        ]  # fmt: skip


class GraphPlan(Struct, frozen=True, kw_only=True):
    """What to do about one graph now."""

    graph: Graph
    target: RenderTarget
    apply: list[Object]
    remove: list[Seen]
    progress: dict[str, WorkloadProgress]
    """By component, of the generation that is wanted."""
    replaced: frozenset[str]
    """Generations that still serve until the wanted one does."""
    restart: Mapping[str, Any] | None


def plan_graph(seen: SeenGraph) -> GraphPlan:
    """Raises GraphError where the object says what cannot be."""
    graph = read_graph_object(seen.object)
    namespace = str(seen.object["metadata"]["namespace"])
    wanted = worker_generation(graph) if graph.workers else ""
    there = _generations(seen.workloads)
    if graph.spec.paused and there and wanted not in there:
        wanted = _serving(graph, seen, there)
    restarted, restart = _restart(graph, seen, wanted)
    target = RenderTarget(
        graph=graph, namespace=namespace, generation=wanted, manager=MANAGER, owner=_owner(seen.object),
        replicas=_adapted(graph, seen.adapters), restarted=restarted,
    )  # fmt: skip
    workers = {each.name for each in graph.workers}
    held = graph.spec.paused and bool(there)
    objects = [
        each for each in [*render(target), *_adapters(target, seen.adapters)]
        if not (held and labels_of(each).get(COMPONENT_LABEL) in workers)
    ]  # fmt: skip
    progress = {each.name: progress_of(seen.of(each, target.generation_of(each))) for each in graph.spec.components}
    new_serves = all(
        progress[each.name].serves and progress[each.name].wanted == target.count(each) for each in graph.workers
    )
    replaced = frozenset(there - {wanted})
    kept = frozenset() if new_serves or not replaced else frozenset((_serving(graph, seen, replaced),))
    return GraphPlan(
        graph=graph, target=target, apply=objects, progress=progress, replaced=kept, restart=restart,
        remove=_superfluous(seen, target, kept),
    )  # fmt: skip


def _generations(workloads: Iterable[Seen]) -> set[str]:
    return {generation for each in workloads if (generation := labels_of(each).get(HASH_LABEL))}


def _serving(graph: Graph, seen: SeenGraph, among: Iterable[str]) -> str:
    """The generation with the most components that serve, and of those the one that is there longest."""

    def rank(generation: str) -> tuple[int, int, str]:
        progress = [progress_of(seen.of(each, generation)) for each in graph.workers]
        made = [
            each["metadata"].get("creationTimestamp", "")
            for each in seen.workloads if labels_of(each).get(HASH_LABEL) == generation
        ]  # fmt: skip
        return -sum(each.serves and each.wanted > 0 for each in progress), -sum(p.ready for p in progress), min(made)

    return min(among, key=rank)


def _superfluous(seen: SeenGraph, target: RenderTarget, kept: frozenset[str]) -> list[Seen]:
    """Workloads of generations that are over, of components that are no more, of replicas beyond those wanted."""
    generations = kept | {target.generation, ""}
    names = {each.name: each for each in target.graph.spec.components}
    found = []
    for each in seen.workloads:
        labels = labels_of(each)
        component = names.get(labels.get(COMPONENT_LABEL, ""))
        is_old = labels.get(HASH_LABEL, "") not in generations
        if component is None or is_old:
            found.append(each)
        elif component.nodes > 1 and labels.get(HASH_LABEL, "") == target.generation_of(component):
            number = name_of(each).rpartition("-")[2]
            if number.isdigit() and int(number) >= target.count(component):
                found.append(each)
    adapted = {
        adapter_name(target.graph, each) for each in target.graph.spec.components if each.scaling_adapter is not None
    }
    return [*found, *(each for each in seen.adapters if name_of(each) not in adapted)]


def adapter_name(graph: Graph, component: GraphComponent) -> str:
    return f"{graph.name}-{component.name.lower()}"


def _adapted(graph: Graph, adapters: Iterable[Seen]) -> dict[str, int]:
    """Replicas that a scaling adapter decides."""
    there = {name_of(each): each for each in adapters}
    found: dict[str, int] = {}
    for component in graph.spec.components:
        adapter = there.get(adapter_name(graph, component))
        if component.scaling_adapter is not None and adapter:
            found[component.name] = int((adapter.get("spec") or {}).get("replicas", component.count))
    return found


def _adapters(target: RenderTarget, there: Iterable[Seen]) -> list[Object]:
    """Made once with the graph's replicas, which are the adapter's from then on."""
    names = {name_of(each) for each in there}
    return [
        {
            "apiVersion": ADAPTERS.api_version,
            "kind": ADAPTERS.kind,
            "metadata": target.metadata(adapter_name(target.graph, each), target.labels()),
            "spec": {
                "replicas": target.count(each), "dgdRef": {"name": target.graph.name, "componentName": each.name}
            },
        }
        for each in target.graph.spec.components
        if each.scaling_adapter is not None and adapter_name(target.graph, each) not in names
    ]  # fmt: skip


def _restart(graph: Graph, seen: SeenGraph, generation: str) -> tuple[dict[str, str], Mapping[str, Any] | None]:
    """Which components' pods carry which restart, and what the status says of it.

    One component after the other: the next one's pods are replaced when those of the last are ready.
    """
    carried = {
        each.name: str(found)
        for each in graph.spec.components
        for workload in seen.of(each, generation if each.is_worker else "")
        if (found := _template_annotations(workload).get(RESTARTED_AT))
    }
    asked, last = graph.spec.restart, seen.status.get("restart") or {}
    if asked is None:
        return carried, None
    if not seen.workloads or (not last and not carried and "observedGeneration" not in seen.status):
        return carried, {"observedID": asked.id, "phase": "Completed"}
    if last.get("observedID") == asked.id and last.get("phase") == "Completed":
        return carried, last
    order = [graph.component(name) for name in asked.strategy.order or [each.name for each in graph.spec.components]]
    waiting: list[str] = []
    for component in order:
        workloads = seen.of(component, generation if component.is_worker else "")
        done = progress_of(workloads).is_complete and _carry(workloads, asked.id)
        carried[component.name] = asked.id
        if not done:
            waiting.append(component.name)
            if asked.strategy.type == "Sequential":
                break
    phase = {"phase": "Restarting", "inProgress": waiting} if waiting else {"phase": "Completed"}
    return carried, {"observedID": asked.id, **phase}


def _carry(workloads: Iterable[Seen], id: str) -> bool:
    return all(_template_annotations(each).get(RESTARTED_AT) == id for each in workloads)


def _template_annotations(workload: Seen) -> Mapping[str, str]:
    return workload["spec"]["template"].get("metadata", {}).get("annotations") or {}


def _owner(found: Seen) -> Object:
    return {
        "apiVersion": found["apiVersion"], "kind": found["kind"], "name": name_of(found),
        "uid": found["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


__all__ = ["MANAGER", "GraphError", "GraphPlan", "SeenGraph", "adapter_name", "plan_graph"]
