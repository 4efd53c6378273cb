"""The operator in a real control plane: graphs become pods, are updated without a lost request, and say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.cluster.operating import aggregated, component, graph, operator
from support.cluster.running import Cluster
from support.cluster.workloads import documents
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
