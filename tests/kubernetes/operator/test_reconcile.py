"""What the operator does, from objects alone: generations, restarts, adapters, pauses."""

from __future__ import annotations

from typing import Any

from dynamo.kubernetes.operator.reconcile import GraphPlan, SeenGraph, plan_graph
from dynamo.kubernetes.operator.status import graph_status
from dynamo.kubernetes.operator.stuck import why_stuck

Object = dict[str, Any]


def component(name: str, kind: str, image: str = "i", **more: Any) -> Object:
    containers = [{"name": "main", "image": image, "command": ["python3", "-m", "dynamo.mocker"]}]
    return {"name": name, "type": kind, "podTemplate": {"spec": {"containers": containers}}, **more}


def graph(worker: str = "i", status: Object | None = None, replicas: int = 1, **spec: Any) -> Object:
    adapter = spec.pop("adapter", None)
    more = {} if adapter is None else {"scalingAdapter": adapter}
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "g", "namespace": "serving", "uid": "1", "generation": 1},
        "spec": {
            "components": [
                component("Frontend", "frontend"), component("worker", "worker", worker, replicas=replicas, **more)
            ],
            **spec,
        },
        "status": status or {},
    }  # fmt: skip


def as_seen(wanted: Object, ready: bool = True, created: str = "2026-01-01T00:00:00Z") -> Object:
    """A workload as the cluster has it after it was applied."""
    count = wanted["spec"]["replicas"]
    done = count if ready else 0
    status = {
        "observedGeneration": 1, "replicas": count, "updatedReplicas": count, "readyReplicas": done,
        "availableReplicas": done,
    }  # fmt: skip
    metadata = {**wanted["metadata"], "generation": 1, "uid": wanted["metadata"]["name"], "creationTimestamp": created}
    return {**wanted, "metadata": metadata, "status": status}


def workloads(plan: GraphPlan) -> list[Object]:
    return [each for each in plan.apply if each["kind"] in ("Deployment", "StatefulSet")]


def first(**shown: Any) -> list[Object]:
    """The workloads of a graph that runs."""
    return [as_seen(each) for each in workloads(plan_graph(SeenGraph(object=graph(**shown))))]


def test_old_workers_stay_until_the_new_ones_serve() -> None:
    old = first()
    plan = plan_graph(SeenGraph(object=graph("j"), workloads=old))
    [_, new] = workloads(plan)
    assert plan.remove == []
    assert new["metadata"]["name"] != old[1]["metadata"]["name"]
    status = graph_status(plan, SeenGraph(object=graph("j"), workloads=old))
    assert status["conditions"][0]["reason"] == "updating"
    assert status["rollingUpdate"]["phase"] == "InProgress"

    starting = [*old, as_seen(new, ready=False)]
    assert plan_graph(SeenGraph(object=graph("j"), workloads=starting)).remove == []
    ready = SeenGraph(object=graph("j", status), workloads=[*old, as_seen(new)])
    plan = plan_graph(ready)
    assert [each["metadata"]["name"] for each in plan.remove] == [old[1]["metadata"]["name"]]
    assert graph_status(plan, ready)["rollingUpdate"]["phase"] == "Completed"


def test_of_several_old_generations_the_one_that_serves_stays() -> None:
    serving = first()
    [_, failed] = workloads(plan_graph(SeenGraph(object=graph("broken"), workloads=serving)))
    seen = [*serving, as_seen(failed, ready=False, created="2026-01-02T00:00:00Z")]
    plan = plan_graph(SeenGraph(object=graph("mended"), workloads=seen))
    assert [each["metadata"]["name"] for each in plan.remove] == [failed["metadata"]["name"]]


def test_going_back_while_the_old_workers_are_there_makes_no_new_ones() -> None:
    old = first()
    [_, failed] = workloads(plan_graph(SeenGraph(object=graph("broken"), workloads=old)))
    plan = plan_graph(SeenGraph(object=graph(), workloads=[*old, as_seen(failed, ready=False)]))
    assert {each["metadata"]["name"] for each in workloads(plan)} == {each["metadata"]["name"] for each in old}
    assert [each["metadata"]["name"] for each in plan.remove] == [failed["metadata"]["name"]]


def test_a_paused_graph_leaves_its_workers_as_they_are() -> None:
    old = first()
    plan = plan_graph(SeenGraph(object=graph("j", paused=True), workloads=old))
    assert [each["metadata"]["name"] for each in workloads(plan)] == ["g-frontend"]
    assert plan.remove == []


def test_an_adapter_decides_the_replicas_of_its_component() -> None:
    plan = plan_graph(SeenGraph(object=graph(adapter={})))
    [adapter] = [each for each in plan.apply if each["kind"] == "DynamoGraphDeploymentScalingAdapter"]
    assert adapter["spec"] == {"replicas": 1, "dgdRef": {"name": "g", "componentName": "worker"}}
    adapter["spec"]["replicas"] = 5
    plan = plan_graph(SeenGraph(object=graph(adapter={}), adapters=[adapter]))
    assert workloads(plan)[1]["spec"]["replicas"] == 5
    assert all(each["kind"] != adapter["kind"] for each in plan.apply)
    assert plan_graph(SeenGraph(object=graph(), adapters=[adapter])).remove == [adapter]


def test_a_component_that_is_no_more_goes() -> None:
    old = first()
    less = graph()
    del less["spec"]["components"][0]
    plan = plan_graph(SeenGraph(object=less, workloads=old))
    assert [each["metadata"]["name"] for each in plan.remove] == ["g-frontend"]


def restarting(plan: GraphPlan) -> dict[str, str]:
    found = {}
    for each in workloads(plan):
        annotations = each["spec"]["template"]["metadata"].get("annotations", {})
        if id := annotations.get("nvidia.com/restartAt"):
            found[each["metadata"]["labels"]["nvidia.com/dynamo-component"]] = id
    return found


def test_a_restart_goes_from_component_to_component() -> None:
    running, known = first(), {"observedGeneration": 1}
    asked = {"id": "1", "strategy": {"order": ["worker", "Frontend"]}}
    plan = plan_graph(SeenGraph(object=graph(status=known, restart=asked), workloads=running))
    assert restarting(plan) == {"worker": "1"}
    half = [running[0], as_seen(workloads(plan)[1], ready=False)]
    assert restarting(plan_graph(SeenGraph(object=graph(status=known, restart=asked), workloads=half))) == {
        "worker": "1"
    }
    half = [running[0], as_seen(workloads(plan)[1])]
    plan = plan_graph(SeenGraph(object=graph(status=known, restart=asked), workloads=half))
    assert restarting(plan) == {"worker": "1", "Frontend": "1"}
    assert plan.restart == {"observedID": "1", "phase": "Restarting", "inProgress": ["Frontend"]}
    done = [as_seen(each) for each in workloads(plan)]
    plan = plan_graph(SeenGraph(object=graph(status=known, restart=asked), workloads=done))
    assert plan.restart == {"observedID": "1", "phase": "Completed"}


def test_a_new_graph_with_a_restart_restarts_nothing() -> None:
    plan = plan_graph(SeenGraph(object=graph(restart={"id": "1"})))
    assert restarting(plan) == {}
    assert plan.restart == {"observedID": "1", "phase": "Completed"}


def pod(**status: Any) -> Object:
    return {"metadata": {"name": "p"}, "status": status}


def container(**state: Any) -> Object:
    return {"name": "main", "image": "i", **state}


def test_why_a_pod_is_stuck_is_a_sentence() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: Insufficient cpu."}
    pull = container(state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})
    secret = container(state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}})
    memory = container(state={}, lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    log = "INFO begin\nerror: the model 'x' does not exist\nbye"
    ended = container(state={"waiting": {"reason": "CrashLoopBackOff"}},
                      lastState={"terminated": {"exitCode": 2, "message": log}})  # fmt: skip
    assert why_stuck([pod(conditions=[scheduled])]) == (
        "pod p cannot be scheduled: 0/1 nodes are available: Insufficient cpu."
    )
    where = "pod p, container main"
    for status, sentence in (
        (pull, f"{where}: the image i cannot be pulled: not found"),
        (secret, f'{where}: cannot start: secret "s" not found'),
        (memory, f"{where}: was ended for using more memory than its limit; raise resources.limits.memory"),
        (ended, f"{where}: its program ended with code 2: error: the model 'x' does not exist"),
    ):
        assert why_stuck([pod(containerStatuses=[status])]) == sentence
    ready = {"type": "Ready", "status": "True"}
    assert why_stuck([pod(conditions=[ready], containerStatuses=[memory])]) == ""
