"""Graphs are read in both versions, and what is wrong is named by its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo.kubernetes.graph import GraphError, read_graph_file, read_graph_object

ALPHA = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g, namespace: serving}
spec:
  envs: [{name: A, value: graph}]
  pvcs: [{name: models, create: true, size: 20Gi, storageClass: fast, volumeAccessMode: ReadWriteMany}]
  services:
    Frontend:
      componentType: main
      extraPodSpec: {mainContainer: {image: i}}
    Decode:
      componentType: worker
      subComponentType: decode
      replicas: 2
      envFromSecret: token
      envs: [{name: A, value: service}, {name: B, value: "1"}]
      resources: {limits: {gpu: "2", memory: 4Gi, custom: {rdma/ib: "1"}}}
      sharedMemory: {size: 16Gi}
      volumeMounts: [{name: models, mountPoint: /models}, {name: cache, mountPoint: /c, useAsCompilationCache: true}]
      multinode: {nodeCount: 2}
      scalingAdapter: {enabled: true}
      extraPodSpec:
        nodeSelector: {gpu: h100}
        mainContainer: {image: i, command: [python3], args: [-m, dynamo.vllm], env: [{name: B, value: "2"}]}
"""


def beta(**component: Any) -> dict[str, Any]:
    whole = {
        "name": "worker", "type": "worker", "podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}}
    }  # fmt: skip
    return {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "g"},
        "spec": {"components": [{**whole, **component}]},
    }  # fmt: skip


def test_services_of_v1alpha1_become_components() -> None:
    graph = read_graph_object(yaml.safe_load(ALPHA))
    frontend, decode = graph.spec.components
    assert (frontend.type, decode.type, decode.count, decode.nodes) == ("frontend", "decode", 2, 2)
    assert graph.spec.env == [{"name": "A", "value": "graph"}]
    assert decode.main["env"] == [{"name": "A", "value": "service"}, {"name": "B", "value": "2"}]
    assert decode.main["envFrom"] == [{"secretRef": {"name": "token"}}]
    assert decode.main["resources"] == {"limits": {"nvidia.com/gpu": "2", "memory": "4Gi", "rdma/ib": "1"}}
    assert decode.main["volumeMounts"] == [{"name": "models", "mountPath": "/models"}]
    assert decode.pod_template.spec["volumes"] == [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    assert decode.pod_template.spec["nodeSelector"] == {"gpu": "h100"}
    assert decode.compilation_cache
    assert (decode.compilation_cache.pvc_name, decode.compilation_cache.mount_path) == ("cache", "/c")
    assert (decode.scaling_adapter, decode.shared_memory_size) == ({}, "16Gi")
    [claim] = graph.spec.claims
    assert claim["name"] == "models"
    assert claim["spec"]["storageClassName"] == "fast"


def test_an_object_written_as_v1alpha1_is_read_where_the_server_calls_it_v1beta1() -> None:
    document = yaml.safe_load(ALPHA) | {"apiVersion": "nvidia.com/v1beta1"}
    assert [each.name for each in read_graph_object(document).spec.components] == ["Frontend", "Decode"]


@pytest.mark.parametrize(
    ("component", "sentence"),
    [
        ({"replica": 2}, "spec.components[0]: unknown field 'replica'; did you mean 'replicas'?"),
        ({"type": "workers"}, "spec.components[0].type: no component has the type 'workers'; did you mean 'worker'?"),
        ({"type": "gpu"}, "it must be frontend, worker, prefill, decode, planner or epp"),
        ({"replicas": -1}, "spec.components[0].replicas: expected 'int' >= 0"),
        ({"replicas": "2"}, "spec.components[0].replicas: expected 'int | null', got 'str'"),
        ({"name": "a b"}, "spec.components[0].name: 'a b' must be at most 63 letters"),
        ({"multinode": {"nodes": 2}}, "spec.components[0].multinode: unknown field 'nodes'"),
        ({"sharedMemorySize": "much"}, "spec.components[0].sharedMemorySize: 'much' is no quantity"),
        ({"frontendSidecar": "side"}, "spec.components[0].frontendSidecar: podTemplate has no container 'side'"),
        ({"experimental": {"failover": {}}}, "spec.components[0].experimental.failover: shadow engines are not"),
        ({"podTemplate": {"spec": {"containers": [{"name": "main"}]}}}, "containers[0].image: is missing"),
        ({"podTemplate": {"spec": {"containers": [{"name": "x"}]}}}, "one must be called 'main'; there is x"),
        (
            {"podTemplate": {"spec": {"toleration": [], "containers": []}}},
            "spec.components[0].podTemplate.spec: unknown field 'toleration'; did you mean 'tolerations'?",
        ),
        (
            {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i", "args": [1]}]}}},
            "spec.components[0].podTemplate.spec.containers[0].args[0]: must be a text, not 1; quote it",
        ),
    ],
)
def test_what_is_wrong_in_a_component_is_named_by_its_field(component: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GraphError) as raised:
        read_graph_object(beta(**component))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_that_differ_by_case_alone_are_refused() -> None:
    document = beta()
    document["spec"]["components"].append({**document["spec"]["components"][0], "name": "Worker"})
    with pytest.raises(GraphError, match=r"spec\.components\[1\]\.name: 'Worker' is also the name of 'worker'"):
        read_graph_object(document)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"apiVersion": "v1"}, "apiVersion: must be nvidia.com/v1beta1 or nvidia.com/v1alpha1, not 'v1'"),
        ({"metadata": {}}, "metadata.name: is missing"),
        ({"metadata": {"name": "G"}}, "metadata.name: 'G' must be lower-case letters"),
        ({"spec": {}}, "spec.components: must name at least one component"),
        ({"spec": {"services": {}, "components": []}}, "spec: has both components and services"),
        ({"specs": {}}, "unknown field 'specs'; did you mean 'spec'?"),
    ],
)
def test_what_is_wrong_around_the_components_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GraphError) as raised:
        read_graph_object({**beta(), **change})
    assert sentence in str(raised.value)


def test_what_has_no_effect_is_said() -> None:
    graph = read_graph_object(beta(topologyConstraint={"packDomain": "host"}))
    assert graph.notes == ("spec.components[0].topologyConstraint: has no effect: placing by topology needs Grove",)


def test_a_file_has_one_graph_and_may_have_other_objects(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(f"{ALPHA}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n")
    assert [each["kind"] for each in read_graph_file(file).companions] == ["ConfigMap"]
    file.write_text("kind: ConfigMap")
    with pytest.raises(GraphError, match="has 0 objects of the kind DynamoGraphDeployment"):
        read_graph_file(file)
    file.write_text("a: [")
    with pytest.raises(GraphError, match="is not YAML"):
        read_graph_file(file)
