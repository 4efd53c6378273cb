"""What the chart makes of its values, and which values it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dynamo.kubernetes.render.rights import operator_rules
from support.cluster.places import BIN, ROOT

pytestmark = pytest.mark.kubernetes

CHART = ROOT / "deploy" / "helm" / "dynamo"
BASE = ROOT / "deploy" / "kustomize" / "base"
HELMS = {"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}
PICKER = ("picker.enabled=true", "picker.graph=agg")
SWITCHES = {
    "defaults": (),
    "no-operator": ("operator.enabled=false",),
    "all-namespaces": ("operator.allNamespaces=true",),
    "several": ("operator.replicas=3", "operator.selector=team=search"),
    "image": (f"image.digest=sha256:{'0' * 64}", "imagePullSecrets[0].name=registry"),
    "picker": PICKER,
    "picker-tls": (*PICKER, "picker.tlsSecret=gateway"),
    "picker-standalone": (
        "picker.enabled=true", "picker.mode=standalone", "picker.pool=stock",
        "picker.args={--model-path,Qwen/Qwen3-0.6B}",
    ),
    "network-policy": (*PICKER, "networkPolicy.enabled=true"),
    "pods": (
        "pods.priorityClassName=high", "pods.nodeSelector.zone=a", "pods.labels.team=a", "pods.annotations.note=b",
        "pods.tolerations[0].operator=Exists", "pods.securityContext.runAsUser=10001",
    ),
}  # fmt: skip
Object = dict[str, Any]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / "helm"), *words], capture_output=True, text=True, check=False)


def template(*values: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    sets = [word for value in values for word in ("--set", value)]
    return helm("template", "dynamo", str(CHART), "-n", "serving", *sets, *words)


def made(*values: str) -> list[Object]:
    done = template(*values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(objects: list[Object], kind: str, name: str = "dynamo-operator") -> Object:
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("values", SWITCHES.values(), ids=SWITCHES)
def test_the_chart_is_well_formed_with_every_switch(values: tuple[str, ...]) -> None:
    sets = [word for value in values for word in ("--set", value)]
    done = helm("lint", "--strict", str(CHART), *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    for each in made(*values):
        for version in ("1.30", "1.37"):
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("values", SWITCHES.values(), ids=SWITCHES)
def test_every_pod_is_restricted(values: tuple[str, ...]) -> None:
    """As the Pod Security Standard of that name has it."""
    pods = []
    for each in made(*values):
        if each["kind"] == "Deployment":
            pods.append(each["spec"]["template"]["spec"])
        elif each["kind"] == "Pod":
            pods.append(each["spec"])
    assert len(pods) == ("picker.enabled=true" in values) + 2 * ("operator.enabled=false" not in values)
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all(set(each) <= {"name", "emptyDir", "secret"} for each in pod.get("volumes", []))
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["resources"]["limits"]["memory"]


def test_rights_are_those_of_one_namespace() -> None:
    objects = made(*PICKER, "operator.replicas=2", "networkPolicy.enabled=true")
    assert not any(each["kind"].startswith("Cluster") for each in objects)
    assert {each["metadata"]["namespace"] for each in objects} == {"serving"}
    assert one(objects, "Role")["rules"] == operator_rules()


def test_all_namespaces_take_a_role_of_the_cluster_that_is_this_release_s_own() -> None:
    objects = made("operator.allNamespaces=true")
    role = one(objects, "ClusterRole", "serving-dynamo-operator")
    assert role["rules"] == operator_rules()
    binding = one(objects, "ClusterRoleBinding", "serving-dynamo-operator")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == ("dynamo-operator", "serving")
    [operator] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--all-namespaces" in operator["args"]


def test_several_pods_get_a_budget_and_one_does_not_stop_a_drain() -> None:
    assert not [each for each in made() if each["kind"] == "PodDisruptionBudget"]
    objects = made("operator.replicas=2", *PICKER)
    for name in ("dynamo-operator", "dynamo-picker"):
        budget, workload = one(objects, "PodDisruptionBudget", name), one(objects, "Deployment", name)
        assert budget["spec"] == {"maxUnavailable": 1, "selector": workload["spec"]["selector"]}


def test_the_probes_ask_the_port_that_the_operator_listens_on() -> None:
    objects = made("operator.healthPort=9999", "networkPolicy.enabled=true")
    [operator] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--health-port=9999" in operator["args"]
    assert operator["ports"] == [{"name": "health", "containerPort": 9999, "protocol": "TCP"}]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert operator[probe]["httpGet"]["port"] == "health"
    assert one(objects, "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9999}]}]


def test_a_picker_follows_the_workers_of_its_graph() -> None:
    [picker] = one(made(*PICKER), "Deployment", "dynamo-picker")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each for each in picker["env"]}
    assert variables["DYN_NAMESPACE_PREFIX"]["value"] == "serving-agg_"
    assert variables["DYN_PLANE_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "agg-plane", "key": "token"}


@pytest.mark.parametrize(
    ("value", "field", "why"),
    [
        ("operator.replicas=two", "/operator/replicas", "got string, want integer"),
        ("operator.replicas=0", "/operator/replicas", "got 0, want 1"),
        ("operator.replica=2", "/operator", "additional properties 'replica' not allowed"),
        ("operators.replicas=2", "", "additional properties 'operators' not allowed"),
        ("operator.allNamespaces=maybe", "/operator/allNamespaces", "got string, want boolean"),
        ("operator.healthPort=70000", "/operator/healthPort", "got 70,000, want 65,535"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy", "one of 'Always', 'IfNotPresent', 'Never'"),
        ("image.digest=abc", "/image/digest", "does not match pattern"),
        ("picker.mode=envoy", "/picker/mode", "one of 'dynamo', 'standalone'"),
        ("picker.args=--pool", "/picker/args", "got string, want array"),
        ("networkPolicy.apiServerPorts[0]=https", "/networkPolicy/apiServerPorts/0", "got string, want integer"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, field: str, why: str) -> None:
    done = template(value)
    assert done.returncode
    assert any(f"at '{field}'" in line and why in line for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (("picker.enabled=true",), "picker.graph: name the DynamoGraphDeployment"),
        (("picker.enabled=true", "picker.mode=standalone"), "picker.pool: name the InferencePool"),
    ],
)
def test_a_picker_without_servers_is_refused(values: tuple[str, ...], why: str) -> None:
    done = template(*values)
    assert done.returncode
    assert why in done.stderr


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_beside_another_operator_s_definitions_only_graphs_with_a_label_are_taken(version: str) -> None:
    theirs = ("--api-versions", f"nvidia.com/{version}/DynamoComponentDeployment")
    refused = template(words=theirs)
    assert refused.returncode
    assert "set operator.selector to a label of yours" in refused.stderr
    assert template("operator.selector=team=search", words=theirs).returncode == 0


def test_the_kustomize_base_has_the_objects_of_the_chart() -> None:
    done = subprocess.run([str(BIN / "kubectl"), "kustomize", str(BASE)], capture_output=True, text=True, check=True)
    of_base = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    of_chart = {}
    for each in made():
        if "helm.sh/hook" in each["metadata"].get("annotations", {}):
            continue
        labels = {key: value for key, value in each["metadata"]["labels"].items() if key not in HELMS}
        each["metadata"]["labels"] = labels
        of_chart[(each["kind"], each["metadata"]["name"])] = each
    assert of_base == of_chart


def test_an_overlay_sets_namespace_and_image(tmp_path: Path) -> None:
    overlay = {
        "resources": ["base"], "namespace": "mine",
        "images": [{"name": "dynamo", "newName": "registry.example.org/dynamo", "newTag": "1"}],
    }  # fmt: skip
    (tmp_path / "base").mkdir()
    for file in BASE.iterdir():
        (tmp_path / "base" / file.name).write_text(file.read_text())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run(
        [str(BIN / "kubectl"), "kustomize", str(tmp_path)], capture_output=True, text=True, check=True
    )
    objects = list(yaml.safe_load_all(done.stdout))
    assert {each["metadata"]["namespace"] for each in objects} == {"mine"}
    assert one(objects, "RoleBinding")["subjects"][0]["namespace"] == "mine"
    [operator] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert operator["image"] == "registry.example.org/dynamo:1"
