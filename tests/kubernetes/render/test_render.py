"""What graphs are made into."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from dynamo.kubernetes.graph import Graph, GraphError, read_graph_file, read_graph_object
from dynamo.kubernetes.render import RenderTarget, render
from dynamo.kubernetes.render.objects import plane_secret
from dynamo.kubernetes.render.target import worker_generation

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
Object = dict[str, Any]


def graph(*components: Object, **spec: Any) -> Graph:
    return read_graph_object(
        {
            "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "g"},
            "spec": {"components": list(components), **spec},
        }
    )  # fmt: skip


def component(name: str = "worker", kind: str = "worker", container: Object | None = None, **more: Any) -> Object:
    main = {"name": "main", "image": "i", "command": ["python3", "-m", "dynamo.vllm"], **(container or {})}
    return {"name": name, "type": kind, "podTemplate": {"spec": {"containers": [main]}}, **more}


def made(of: Graph, kind: str, **target: Any) -> list[Object]:
    objects = render(RenderTarget(graph=of, namespace="serving", **target))
    return [each for each in objects if each["kind"] == kind]


def main_of(workload: Object) -> Object:
    [container] = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def variables(workload: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in main_of(workload)["env"]}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
def test_the_objects_of_an_example_fit_kubernetes_own_schemas(file: Path, version: str) -> None:
    target = RenderTarget(graph=read_graph_file(file).graph, namespace="serving", generation="0123abcd")
    for each in [plane_secret(target, "token"), *render(target)]:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_frontend_serves_the_workers_of_all_generations_of_its_graph_alone() -> None:
    of = graph(component("Frontend", "frontend"), component())
    frontend, worker = made(of, "Deployment", generation="0123abcd")
    assert variables(frontend)["DYN_NAMESPACE_PREFIX"] == "serving-g_"
    assert variables(worker)["DYN_NAMESPACE"] == "serving-g_0123abcd"
    assert worker["metadata"]["name"] == "g-worker-0123abcd"
    frontend, worker = made(of, "Deployment")
    assert "DYN_NAMESPACE_PREFIX" not in variables(frontend)
    assert variables(worker)["DYN_NAMESPACE"] == variables(frontend)["DYN_NAMESPACE"] == "serving-g"


def test_what_its_author_wrote_wins_over_what_a_type_adds() -> None:
    probe = {"exec": {"command": ["true"]}}
    given = {"env": [{"name": "DYN_SYSTEM_PORT", "value": "7"}], "readinessProbe": probe}
    of = graph(component(container=given), env=[{"name": "A", "value": "1"}, {"name": "DYN_SYSTEM_PORT", "value": "8"}])
    [worker] = made(of, "Deployment")
    assert variables(worker)["DYN_SYSTEM_PORT"] == "7"
    assert variables(worker)["A"] == "1"
    assert main_of(worker)["readinessProbe"] == probe


def test_a_drain_fits_the_grace_of_the_pod() -> None:
    of = component()
    of["podTemplate"]["spec"]["terminationGracePeriodSeconds"] = 600
    [worker] = made(graph(of), "Deployment")
    assert variables(worker)["DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"] == "595"
    [frontend] = made(graph(component("F", "frontend")), "Deployment")
    assert variables(frontend)["DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"] == "50"
    assert main_of(frontend)["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]


def test_shared_memory_is_a_volume_unless_it_is_zero_or_mounted_already() -> None:
    def volumes(**more: Any) -> list[Object]:
        [worker] = made(graph(component(**more)), "Deployment")
        found: list[Object] = worker["spec"]["template"]["spec"].get("volumes", [])
        return found

    assert volumes()[0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes(sharedMemorySize="2Gi")[0]["emptyDir"]["sizeLimit"] == "2Gi"
    assert volumes(sharedMemorySize=0) == []
    assert volumes(container={"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}) == []


@pytest.mark.parametrize(
    "container",
    [
        {"command": ["python3", "-m", "dynamo.vllm"], "args": ["--model", "m"]},
        {"command": ["/bin/sh", "-c"], "args": ["python3 -m dynamo.vllm --model m 2>&1 | tee log"]},
    ],
)
def test_pods_of_several_nodes_know_their_leader_and_their_rank(container: Object) -> None:
    of = graph(component(container=container, multinode={"nodeCount": 4}, replicas=2))
    first, second = made(of, "StatefulSet")
    assert (first["metadata"]["name"], second["metadata"]["name"]) == ("g-worker-0", "g-worker-1")
    assert first["spec"]["replicas"] == 4
    words = " ".join([*main_of(second)["command"], *main_of(second)["args"]])
    flags = "--num-nodes 4 --node-rank $(NODE_RANK) --leader-addr g-worker-1-0.g-worker.serving.svc:29500"
    assert f"-m dynamo.vllm {flags} --model m" in words
    [service] = made(of, "Service")
    assert service["spec"]["publishNotReadyAddresses"]


def test_flags_of_several_nodes_that_are_there_stay_alone() -> None:
    words = ["python3", "-m", "dynamo.sglang", "--nnodes", "2"]
    [leader] = made(graph(component(container={"command": words}, multinode={"nodeCount": 2})), "StatefulSet")
    assert main_of(leader)["command"] == words


def test_nobody_may_do_more_than_discovery_needs() -> None:
    [frontend, worker] = made(graph(component("F", "frontend"), component()), "Role")
    for role in (frontend, worker):
        assert {name for rule in role["rules"] for name in rule["resources"]} == {
            "dynamoworkermetadatas", "endpointslices"
        }  # fmt: skip


def test_a_generation_is_another_one_exactly_when_the_pods_of_workers_are() -> None:
    frontend = component("Frontend", "frontend")
    base = worker_generation(graph(frontend, component()))
    assert worker_generation(graph(component("Frontend", "frontend", {"image": "j"}), component())) == base
    assert worker_generation(graph(frontend, component(replicas=7))) == base
    assert worker_generation(graph(frontend, component(scalingAdapter={}))) == base
    assert worker_generation(graph(frontend, component(container={"image": "j"}))) != base
    assert worker_generation(graph(frontend, component(), env=[{"name": "A", "value": "1"}])) != base


def test_several_pods_of_a_component_are_drained_one_at_a_time() -> None:
    assert made(graph(component(replicas=1)), "PodDisruptionBudget") == []
    [budget] = made(graph(component(replicas=2)), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_a_name_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(GraphError, match="which is too long"):
        made(graph(component("w" * 63)), "Deployment")


def test_the_workers_of_a_base_model_have_a_service_of_its_name() -> None:
    of = graph(component(modelRef={"name": "Qwen/Qwen3-0.6B"}))
    [_, service] = made(of, "Service")
    assert service["metadata"]["name"] == f"dynamo-model-{sha256(b'Qwen/Qwen3-0.6B').hexdigest()[:8]}"
    [worker] = made(of, "Deployment")
    labels = worker["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
