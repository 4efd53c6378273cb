"""Discovery in a real control plane: pods that find each other, leave, and outlive outages of the API server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.cluster.places import ROOT
from support.cluster.running import Cluster
from support.cluster.workloads import HTTP_PORT, frontend, mockers
from support.discovery_cluster import CONTRACT_NAMESPACE
from support.waiting import until_sync

pytestmark = pytest.mark.kubernetes

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}

Deploy = Callable[..., None]


def url(cluster: Cluster, namespace: str, path: str) -> str:
    [address] = cluster.addresses("frontend", namespace)
    return f"http://{address}:{HTTP_PORT}{path}"


def answers(cluster: Cluster, namespace: str) -> bool:
    """Whether a chat is answered, with a number of tokens that was asked for."""
    done = cluster.http(url(cluster, namespace, "/v1/chat/completions"), CHAT)
    return bool(done["usage"]["completion_tokens"] == 8)


def models(cluster: Cluster, namespace: str) -> list[str]:
    return [each["id"] for each in cluster.http(url(cluster, namespace, "/v1/models"))["data"]]


def workers(cluster: Cluster, namespace: str) -> set[str]:
    """Workers' pods that wrote an object; frontends whose routers share their state write one too."""
    found = cluster.get("dynamoworkermetadatas", "-n", namespace)["items"]
    names = {each["metadata"]["ownerReferences"][0]["name"] for each in found}
    return {name for name in names if name.startswith("worker")}


def test_pods_find_each_other_and_answer_a_chat(cluster: Cluster, namespace: str, deploy: Deploy) -> None:
    deploy(*frontend(), *mockers(2))
    until_sync(lambda: models(cluster, namespace) == ["tiny"])
    assert answers(cluster, namespace)
    pods = {pod["metadata"]["name"] for pod in cluster.get("pods", "-n", namespace, "-l", "app=worker")["items"]}
    assert workers(cluster, namespace) == pods


def test_the_model_leaves_with_its_last_worker_and_comes_back(cluster: Cluster, namespace: str, deploy: Deploy) -> None:
    deploy(*frontend(), *mockers(1))
    until_sync(lambda: models(cluster, namespace) == ["tiny"])
    cluster.kubectl("scale", "-n", namespace, "deployment/worker", "--replicas=0")
    until_sync(lambda: models(cluster, namespace) == [])
    until_sync(lambda: workers(cluster, namespace) == set())
    cluster.kubectl("scale", "-n", namespace, "deployment/worker", "--replicas=1")
    until_sync(lambda: models(cluster, namespace) == ["tiny"])
    assert answers(cluster, namespace)


def test_known_workers_serve_while_the_api_server_is_down(cluster: Cluster, namespace: str, deploy: Deploy) -> None:
    deploy(*frontend(), *mockers(2))
    until_sync(lambda: models(cluster, namespace) == ["tiny"])
    chat = url(cluster, namespace, "/v1/chat/completions")
    with cluster.paused("kube-apiserver"):
        for _ in range(5):
            assert cluster.http(chat, CHAT)["usage"]["completion_tokens"] == 8
    cluster.kill("kube-apiserver")
    for _ in range(5):
        assert cluster.http(chat, CHAT)["usage"]["completion_tokens"] == 8
    until_sync(lambda: is_served(cluster))
    cluster.kubectl("scale", "-n", namespace, "deployment/worker", "--replicas=3")
    until_sync(lambda: len(workers(cluster, namespace)) == 3)
    assert answers(cluster, namespace)


def is_served(cluster: Cluster) -> bool:
    try:
        return cluster.kubectl("get", "--raw", "/readyz") == "ok"
    except AssertionError:
        return False


def test_a_pod_without_rights_says_which_it_needs(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("delete", "rolebinding", "-n", namespace, "dynamo-worker")
    cluster.apply("\n---\n".join(json.dumps(each) for each in mockers(1)), namespace)
    pod = until_sync(lambda: pod_that_failed(cluster, namespace))
    said = cluster.kubectl("logs", "-n", namespace, pod)
    assert "RBAC must allow the verb 'list' on 'dynamoworkermetadatas' of the API group 'nvidia.com'" in said
    assert "docs/kubernetes.md" in said


def pod_that_failed(cluster: Cluster, namespace: str) -> str:
    for pod in cluster.get("pods", "-n", namespace)["items"]:
        statuses: list[dict[str, Any]] = pod["status"].get("containerStatuses") or []
        if any(status["lastState"].get("terminated") for status in statuses):
            return str(pod["metadata"]["name"])
    return ""


def test_a_worker_may_do_nothing_but_what_discovery_needs(cluster: Cluster, namespace: str) -> None:
    account = f"--as=system:serviceaccount:{namespace}:dynamo-worker"
    granted = cluster.kubectl("auth", "can-i", "--list", "-n", namespace, account)
    rows = [line.split() for line in granted.splitlines()[1:] if "selfsubject" not in line and not line.startswith(" ")]
    assert {row[0] for row in rows} == {"dynamoworkermetadatas.nvidia.com", "endpointslices.discovery.k8s.io"}


def test_discovery_keeps_its_contract_with_a_real_api_server(cluster: Cluster, namespace: str) -> None:
    """The contract's own tests, run inside the cluster's network."""
    said = cluster.run(
        "env", f"{CONTRACT_NAMESPACE}={namespace}", sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
        str(ROOT / "tests/runtime/discovery/test_contract.py"), "-k", "kubernetes",
    )  # fmt: skip
    assert " passed" in said
