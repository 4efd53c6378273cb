"""What the status of a graph says; from its plan and its objects alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dynamo.kubernetes.graph import GraphComponent
from dynamo.kubernetes.operator.kinds import labels_of, name_of
from dynamo.kubernetes.operator.reconcile import GraphPlan, SeenGraph
from dynamo.kubernetes.operator.stuck import why_no_pods, why_stuck
from dynamo.kubernetes.render.target import COMPONENT_LABEL, HASH_LABEL

Object = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def graph_status(plan: GraphPlan, seen: SeenGraph) -> Object:
    """Ready when each component serves with as many replicas as wanted; else with the reason in a sentence."""
    waiting = [
        each for each in plan.graph.spec.components
        if not plan.progress[each.name].serves or plan.progress[each.name].wanted < plan.target.count(each)
    ]  # fmt: skip
    sentences = [_sentence(plan, seen, each) for each in waiting]
    if plan.replaced:
        reason = "updating"
    elif waiting:
        reason = (
            "pods_not_ready"
            if any(plan.progress[each.name].made for each in waiting)
            else "some_resources_are_not_ready"
        )
    else:
        reason = "all_resources_are_ready"
    told = "; ".join(sentences) or "all components are ready"
    if plan.graph.spec.paused:
        told = f"paused: {told}"
    ready = not waiting and not plan.replaced
    status: Object = {
        "observedGeneration": seen.object["metadata"].get("generation", 0),
        "state": "successful" if ready else "pending",
        "conditions": [_condition(seen, ready, reason, told)],
        "components": {each.name: _component(plan, seen, each) for each in plan.graph.spec.components},
    }
    if rolling := _rolling(plan, seen):
        status["rollingUpdate"] = rolling
    if plan.restart:
        status["restart"] = dict(plan.restart)
    return status


def failed_status(seen: SeenGraph, reason: str, why: str) -> Object:
    """What was said of the components stays: they may run."""
    kept = {key: seen.status[key] for key in ("components", "rollingUpdate", "restart") if key in seen.status}
    return {
        **kept,
        "observedGeneration": seen.object["metadata"].get("generation", 0),
        "state": "failed",
        "conditions": [_condition(seen, False, reason, why)],
    }


def ready_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or () if each["type"] == "Ready"), {})


def is_trouble(condition: Mapping[str, Any]) -> bool:
    """Somebody must do something; waiting alone does not help, or not for sure."""
    return condition["reason"] in ("invalid_spec", "refused") or "pod " in condition["message"]


def _condition(seen: SeenGraph, ready: bool, reason: str, message: str) -> Object:
    last, value = ready_condition(seen.status), "True" if ready else "False"
    since = last["lastTransitionTime"] if last.get("status") == value else now()
    return {
        "type": "Ready", "status": value, "reason": reason, "message": message[:1000], "lastTransitionTime": since,
        "observedGeneration": seen.object["metadata"].get("generation", 0),
    }  # fmt: skip


def _sentence(plan: GraphPlan, seen: SeenGraph, component: GraphComponent) -> str:
    progress = plan.progress[component.name]
    counted = f"{component.name}: {progress.ready} of {plan.target.count(component)} ready"
    generation = plan.target.generation_of(component)
    pods = [
        each for each in seen.pods
        if labels_of(each).get(COMPONENT_LABEL) == component.name and labels_of(each).get(HASH_LABEL, "") == generation
    ]  # fmt: skip
    workloads = seen.of(component, generation)
    why = next((told for each in workloads if (told := why_no_pods(each))), "") or why_stuck(pods)
    return f"{counted}: {why}" if why else counted


def _component(plan: GraphPlan, seen: SeenGraph, component: GraphComponent) -> Object:
    progress = plan.progress[component.name]
    return {
        "componentKind": "StatefulSet" if component.nodes > 1 else "Deployment",
        "componentNames": sorted(name_of(each) for each in seen.of(component)),
        "runtimeNamespace": plan.target.dynamo_namespace(component),
        "replicas": progress.made,
        "updatedReplicas": progress.updated,
        "readyReplicas": progress.ready,
        "availableReplicas": progress.available,
    }


def _rolling(plan: GraphPlan, seen: SeenGraph) -> Object | None:
    last = seen.status.get("rollingUpdate") or {}
    if plan.replaced:
        done = [each.name for each in plan.graph.workers if plan.progress[each.name].serves]
        begun = last.get("startTime") if last.get("phase") == "InProgress" else None
        return {"phase": "InProgress", "startTime": begun or now(), "updatedComponents": done}
    if last.get("phase") == "InProgress":
        workers = [each.name for each in plan.graph.workers]
        return {**last, "phase": "Completed", "endTime": now(), "updatedComponents": workers}
    return dict(last) or None
