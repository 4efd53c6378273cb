"""The operator in a real control plane: graphs become pods, are updated without a lost request, say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.cluster.operating import aggregated, operator
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


def pods(cluster: Cluster, namespace: str, component: str) -> list[Object]:
    found = cluster.get("pods", "-n", namespace, "-l", f"nvidia.com/dynamo-component={component}")["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def url(cluster: Cluster, namespace: str, path: str) -> str:
    return f"http://{pods(cluster, namespace, 'Frontend')[0]['status']['podIP']}:8000{path}"


def test_a_graph_answers_with_a_frontend_that_has_no_files_of_the_model(cluster: Cluster, operated: str) -> None:
    cluster.apply(json.dumps(aggregated()), operated)
    until_ready(cluster, operated, "aggregated")
    done = cluster.http(url(cluster, operated, "/v1/chat/completions"), CHAT)
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
    assert cluster.http(url(cluster, operated, "/v1/chat/completions"), CHAT)["usage"]["completion_tokens"] == 8
    old = pods(cluster, operated, "worker")
    cluster.apply(json.dumps(shown), operated)
    until_ready(cluster, operated, "aggregated")
    until_sync(lambda: generations(cluster, operated) == before)
    assert {each["metadata"]["uid"] for each in pods(cluster, operated, "worker")} <= {
        each["metadata"]["uid"] for each in old
    }
