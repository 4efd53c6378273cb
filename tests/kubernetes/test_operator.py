"""The operator in a real control plane: graphs become pods, are updated without a lost request, say what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.cluster.operating import aggregated, component, graph, operator
from support.cluster.running import Cluster
from support.waiting import until_sync

pytestmark = pytest.mark.kubernetes

Object = dict[str, Any]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
GREEDY = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 24, "temperature": 0}


@pytest.fixture
def operated(cluster: Cluster, namespace: str, deploy: Callable[..., None]) -> str:
    deploy(*operator())
    return namespace


def condition(cluster: Cluster, namespace: str, name: str) -> Object:
    found = cluster.get("dgd", name, "-n", namespace)
    status = found.get("status", {})
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return {}
    return next(each for each in status["conditions"] if each["type"] == "Ready")


def until_ready(cluster: Cluster, namespace: str, name: str) -> None:
    until_sync(lambda: condition(cluster, namespace, name).get("status") == "True")


def answer(cluster: Cluster, namespace: str) -> Object:
    """To a chat, once the frontend knows the model."""
    until_sync(lambda: cluster.http(url(cluster, namespace, "/v1/models"))["data"])
    return cluster.http(url(cluster, namespace, "/v1/chat/completions"), CHAT)


def pods(cluster: Cluster, namespace: str, component: str) -> list[Object]:
    found = cluster.get("pods", "-n", namespace, "-l", f"nvidia.com/dynamo-component={component}")["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def url(cluster: Cluster, namespace: str, path: str) -> str:
    return f"http://{pods(cluster, namespace, 'Frontend')[0]['status']['podIP']}:8000{path}"


def test_a_graph_answers_with_a_frontend_that_has_no_files_of_the_model(cluster: Cluster, operated: str) -> None:
    cluster.apply(json.dumps(aggregated()), operated)
    until_ready(cluster, operated, "aggregated")
    done = answer(cluster, operated)
    assert done["usage"]["completion_tokens"] == 8
    status = cluster.get("dgd", "aggregated", "-n", operated)["status"]
    assert status["state"] == "successful"
    assert {name: each["readyReplicas"] for name, each in status["components"].items()} == {"Frontend": 1, "worker": 1}
    columns = cluster.kubectl("get", "dgd", "-n", operated).splitlines()
    assert columns[0].split() == ["NAME", "READY", "REASON", "MESSAGE", "AGE"]


def generations(cluster: Cluster, namespace: str) -> set[str]:
    found = cluster.get("deployments", "-n", namespace, "-l", "nvidia.com/dynamo-component=worker")["items"]
    return {each["metadata"]["labels"]["nvidia.com/dynamo-worker-hash"] for each in found}


def rolled(cluster: Cluster, namespace: str, before: set[str]) -> bool:
    """A new generation of workers has taken the place of the old one, whose pods are gone."""
    now = generations(cluster, namespace)
    found = cluster.get("pods", "-n", namespace, "-l", "nvidia.com/dynamo-component=worker")["items"]
    hashes = {each["metadata"]["labels"]["nvidia.com/dynamo-worker-hash"] for each in found}
    return len(now) == 1 and not now & before and hashes == now


def check(summary: Object, least: int) -> None:
    assert summary["failed"] == []
    assert len(summary["texts"]) == 1
    assert summary["done"] >= least


def test_no_request_is_lost_while_workers_and_frontends_are_replaced(cluster: Cluster, operated: str) -> None:
    shown = aggregated(workers=2)
    cluster.apply(json.dumps(shown), operated)
    until_ready(cluster, operated, "aggregated")
    with cluster.asking(operated, "aggregated-frontend") as asking:
        asking.more(50)
        before = generations(cluster, operated)
        changed = aggregated(workers=2, DYN_LOG="info,dynamo=debug")
        # Another model card too, so that one frontend serves both versions for a while.
        words = changed["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["command"]
        words += ["--context-length", "1024"]
        cluster.apply(json.dumps(changed), operated)
        until_sync(lambda: rolled(cluster, operated, before))
        until_ready(cluster, operated, "aggregated")
        asking.more(50)
        old = {each["metadata"]["name"] for each in pods(cluster, operated, "Frontend")}
        changed["spec"]["components"][0]["podTemplate"]["metadata"] = {"annotations": {"changed": "yes"}}
        cluster.apply(json.dumps(changed), operated)
        until_sync(lambda: not old & all_pods(cluster, operated, "Frontend"))
        until_ready(cluster, operated, "aggregated")
        asking.more(100)
        check(asking.end(), 200)
    rolling = cluster.get("dgd", "aggregated", "-n", operated)["status"]["rollingUpdate"]
    assert (rolling["phase"], rolling["updatedComponents"]) == ("Completed", ["worker"])


def all_pods(cluster: Cluster, namespace: str, component: str) -> set[str]:
    """Also those that are about to end."""
    found = cluster.get("pods", "-n", namespace, "-l", f"nvidia.com/dynamo-component={component}")["items"]
    return {each["metadata"]["name"] for each in found}


def test_the_old_workers_serve_on_while_new_ones_cannot_start_and_return_at_once(
    cluster: Cluster, operated: str
) -> None:
    shown = aggregated()
    cluster.apply(json.dumps(shown), operated)
    until_ready(cluster, operated, "aggregated")
    before = generations(cluster, operated)
    broken = aggregated()
    broken["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["command"] += ["--no-such-flag", "1"]
    cluster.apply(json.dumps(broken), operated)
    said = until_sync(
        lambda: "no-such-flag" in (found := condition(cluster, operated, "aggregated").get("message", "")) and found
    )
    assert "its program ended with code 1" in said
    assert condition(cluster, operated, "aggregated")["reason"] == "updating"
    assert before < generations(cluster, operated)
    assert answer(cluster, operated)["usage"]["completion_tokens"] == 8
    old = pods(cluster, operated, "worker")
    cluster.apply(json.dumps(shown), operated)
    until_ready(cluster, operated, "aggregated")
    until_sync(lambda: generations(cluster, operated) == before)
    assert {each["metadata"]["uid"] for each in pods(cluster, operated, "worker")} <= {
        each["metadata"]["uid"] for each in old
    }


def disaggregated(**adapter: Any) -> Object:
    mocker = ("-m", "dynamo.mocker", "--model-path", "tiny", "--disaggregation-mode")
    return graph(
        "split",
        component("Frontend", "frontend", "-m", "dynamo.frontend", "--router-mode", "kv"),
        component("prefill", "prefill", *mocker, "prefill"),
        {**component("decode", "decode", *mocker, "decode"), **adapter},
    )


def test_prompts_are_computed_by_the_prefill_workers_of_a_graph(cluster: Cluster, operated: str) -> None:
    cluster.apply(json.dumps(disaggregated()), operated)
    until_ready(cluster, operated, "split")
    prompt = "a long prompt that is worth a way to another worker " * 40
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
    done = cluster.http(url(cluster, operated, "/v1/completions"), body)
    assert done["usage"]["completion_tokens"] == 4
    [prefill] = pods(cluster, operated, "prefill")
    metrics = cluster.run("curl", "--silent", f"http://{prefill['status']['podIP']}:9090/metrics")
    counted = [line for line in metrics.splitlines() if "requests_total" in line and 'endpoint="generate"' in line]
    assert any(float(line.rpartition(" ")[2]) > 0 for line in counted), metrics


def test_a_component_is_scaled_by_its_adapter_as_a_deployment_is(cluster: Cluster, operated: str) -> None:
    cluster.apply(json.dumps(disaggregated(scalingAdapter={})), operated)
    until_ready(cluster, operated, "split")
    cluster.kubectl("scale", "-n", operated, "dgdsa/split-decode", "--replicas=3")
    until_sync(lambda: sum(is_ready(each) for each in pods(cluster, operated, "decode")) == 3)
    scale = f"/apis/nvidia.com/v1beta1/namespaces/{operated}/dynamographdeploymentscalingadapters/split-decode/scale"
    until_sync(lambda: json.loads(cluster.kubectl("get", "--raw", scale))["status"]["replicas"] == 3)
    found = json.loads(cluster.kubectl("get", "--raw", scale))
    chosen = cluster.get("pods", "-n", operated, "-l", found["status"]["selector"])["items"]
    assert {each["metadata"]["name"] for each in chosen} == all_pods(cluster, operated, "decode")
    cluster.kubectl("scale", "-n", operated, "dgdsa/split-decode", "--replicas=1")
    until_sync(lambda: len(all_pods(cluster, operated, "decode")) == 1)
    until_ready(cluster, operated, "split")


def is_ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def test_a_planner_of_the_graph_scales_its_workers(cluster: Cluster, operated: str) -> None:
    config = {
        "environment": "kubernetes", "optimization_target": "throughput", "load_adjustment_interval_seconds": 1,
        "min_endpoint": 2, "frontend_url": f"http://planned-frontend.{operated}.svc.cluster.local:8000",
    }  # fmt: skip
    frontend = component("Frontend", "frontend", "-m", "dynamo.frontend")
    planner = component("Planner", "planner", "-m", "dynamo.planner", "--config", json.dumps(config))
    for probe in ("startupProbe", "readinessProbe"):
        del planner["podTemplate"]["spec"]["containers"][0][probe]
    worker = component("worker", "worker", "-m", "dynamo.mocker", "--model-path", "tiny")
    cluster.apply(json.dumps(graph("planned", frontend, {**worker, "scalingAdapter": {}}, planner)), operated)
    until_sync(lambda: sum(is_ready(each) for each in pods(cluster, operated, "worker")) == 2)
    wanted = cluster.get("dgdsa", "planned-worker", "-n", operated)["spec"]["replicas"]
    assert wanted == 2


def test_a_rollout_outlives_the_operator(cluster: Cluster, operated: str) -> None:
    """Killed in its middle, and another one goes on."""
    cluster.apply(json.dumps(aggregated()), operated)
    until_ready(cluster, operated, "aggregated")
    before = generations(cluster, operated)
    with cluster.asking(operated, "aggregated-frontend", 2) as asking:
        asking.more(10)
        cluster.apply(json.dumps(aggregated(DYN_LOG="debug")), operated)
        until_sync(lambda: generations(cluster, operated) > before)
        cluster.kubectl("delete", "pod", "-n", operated, "-l", "app=dynamo-operator", "--grace-period=0", "--force")
        until_sync(lambda: rolled(cluster, operated, before))
        until_ready(cluster, operated, "aggregated")
        asking.more(10)
        check(asking.end(), 20)


def refused(cluster: Cluster, namespace: str, document: Object) -> str:
    """What the API server answers to an object that it does not take."""
    kind, version = "dynamographdeployments", document["apiVersion"]
    path = f"{cluster.server}/apis/{version}/namespaces/{namespace}/{kind}?fieldValidation=Strict"
    return cluster.run(
        "curl", "--silent", "--insecure", "--header", f"Authorization: Bearer {cluster.token}",
        "--header", "Content-Type: application/json", "--data", json.dumps(document), path,
    )  # fmt: skip


def test_what_is_wrong_is_said_by_the_api_server_itself(cluster: Cluster, namespace: str) -> None:
    def changed(**fields: Any) -> Object:
        document = aggregated()
        document["spec"]["components"][1] |= fields
        return document

    two = aggregated()
    two["spec"]["components"][1]["name"] = "frontend"
    bare = component("worker", "worker")
    del bare["podTemplate"]["spec"]["containers"][0]["image"]
    both = {**aggregated(), "spec": {**aggregated()["spec"], "services": {"a": {}}}}
    for document, sentence in (
        (changed(replica=2), 'unknown field \\"spec.components[1].replica\\"'),
        (changed(type="wroker"), 'Unsupported value: \\"wroker\\"'),
        (
            changed(podTemplate={"spec": {"containers": [{"name": "x", "image": "i"}]}}),
            "must have one that is called main",
        ),
        (two, "names of components must differ by more than the case of their letters"),
        (graph("bare", bare), "the container main needs an image"),
        (both, "give components (v1beta1) or services (v1alpha1), and not both"),
    ):
        assert sentence in refused(cluster, namespace, document)


def says(cluster: Cluster, namespace: str, name: str, sentence: str) -> bool:
    return sentence in condition(cluster, namespace, name).get("message", "")


def test_what_only_the_operator_finds_stands_in_the_status_and_in_an_event(cluster: Cluster, operated: str) -> None:
    typo = aggregated("typo")
    typo["spec"]["components"][1]["podTemplate"]["spec"]["toleration"] = []
    huge = aggregated("huge")
    huge["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "4000"}}
    secret = aggregated("secret")
    missing = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "k"}}}
    secret["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["env"].append(missing)
    model = graph("model", component("worker", "worker", "-m", "dynamo.llama_cpp", "--model", "/no/such/model.gguf"))
    quantity = aggregated("quantity")
    quantity["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "much"}}
    sentences = {
        "typo": "unknown field 'toleration'; did you mean 'tolerations'?",
        "huge": "cannot be scheduled: 0/1 nodes are available: 1 Insufficient cpu",
        "secret": "no-such-secret",
        "model": "its program ended with code 1: error: ",
        "quantity": "Deployment quantity-worker-",
    }
    for each in (typo, huge, secret, model, quantity):
        cluster.apply(json.dumps(each), operated)
    for name, sentence in sentences.items():
        until_sync(partial(says, cluster, operated, name, sentence))
        events = cluster.get("events", "-n", operated, "--field-selector", f"involvedObject.name={name}")["items"]
        assert any(sentence in each["message"] for each in events)


def test_a_graph_of_v1alpha1_runs(cluster: Cluster, operated: str) -> None:
    def service(kind: str, *words: str) -> Object:
        [main] = component("x", kind, *words)["podTemplate"]["spec"]["containers"]
        return {
            "componentType": kind,
            "extraPodSpec": {"mainContainer": {k: v for k, v in main.items() if k != "name"}},
        }

    services = {
        "Frontend": service("frontend", "-m", "dynamo.frontend"),
        "Worker": service("worker", "-m", "dynamo.mocker", "--model-path", "tiny"),
    }
    document = {
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": "old"},
        "spec": {"services": services},
    }  # fmt: skip
    cluster.apply(json.dumps(document), operated)
    until_ready(cluster, operated, "old")
    done = answer(cluster, operated)
    assert done["usage"]["completion_tokens"] == 8


def test_deploy_follows_a_graph_until_it_serves(cluster: Cluster, operated: str, tmp_path: Path) -> None:
    said = deployed(cluster, operated, tmp_path, aggregated())
    assert "applied the graph aggregated" in said
    assert "the graph aggregated is ready after" in said


def test_deploy_needs_no_operator(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    said = deployed(cluster, namespace, tmp_path, aggregated(), "--plain")
    assert "worker: 1 of 1 ready" in said
    assert "the graph aggregated is ready after" in said
    done = answer(cluster, namespace)
    assert done["usage"]["completion_tokens"] == 8
    secret = cluster.get("secret", "aggregated-plane", "-n", namespace)["data"]
    deployed(cluster, namespace, tmp_path, aggregated(), "--plain")
    assert cluster.get("secret", "aggregated-plane", "-n", namespace)["data"] == secret


def deployed(cluster: Cluster, namespace: str, folder: Path, document: Object, *flags: str) -> str:
    (folder / "graph.yaml").write_text(json.dumps(document))
    program = "from dynamo.cli.main import dynamo; dynamo()"
    return cluster.run(sys.executable, "-c", program, "deploy", str(folder / "graph.yaml"), "-n", namespace, *flags)
