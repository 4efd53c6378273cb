"""An InferencePool followed at the stand-in for the API server: which pods are endpoints, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.api.epp.pool import PoolFollower
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.cluster import ClusterAccess
from support.kube_server import KubeServer
from support.waiting import until


class Pods:
    def __init__(self, server: KubeServer) -> None:
        self._server = server

    def put(self, name: str, address: str, *, ready: bool = True, app: str = "llm", **metadata: Any) -> None:
        self._server.put_object(
            "pods",
            {
                "metadata": {"name": name, "labels": {"app": app}, **metadata},
                "status": {"podIP": address, "conditions": [{"type": "Ready", "status": str(ready)}]},
            },
        )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KubeServer]:
    async with KubeServer(tmp_path) as made:
        yield made


@pytest.fixture
def seen() -> list[list[str]]:
    return []


@pytest.fixture
async def follower(server: KubeServer, seen: list[list[str]]) -> AsyncIterator[PoolFollower]:
    access = ClusterAccess(server=server.url, origin="a test", namespace="serving", ca=server.ca, token=b"first")
    async with KubernetesApi(access) as api:
        follower = PoolFollower(api, "llm", lambda endpoints: seen.append(list(endpoints)))
        try:
            yield follower
        finally:
            await follower.close()


def put_pool(server: KubeServer, app: str, *ports: int) -> None:
    spec = {
        "selector": {"matchLabels": {"app": app}},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": {"name": "epp", "port": {"number": 9002}, "failureMode": "FailOpen"},
    }
    server.put("inferencepools", "llm", spec)


async def test_ready_pods_at_all_ports_are_endpoints(
    server: KubeServer, seen: list[list[str]], follower: PoolFollower
) -> None:
    pods = Pods(server)
    put_pool(server, "llm", 8000, 8001)
    server.put("inferencepools", "other", {"selector": {"matchLabels": {"app": "x"}}, "targetPorts": [{"number": 1}]})
    pods.put("a", "10.0.0.1")
    pods.put("b", "fd00::2")
    pods.put("c", "10.0.0.3", ready=False)
    pods.put("d", "10.0.0.4", app="other")
    pods.put("e", "")
    await follower.start()
    assert seen[-1] == ["10.0.0.1:8000", "10.0.0.1:8001", "[fd00::2]:8000", "[fd00::2]:8001"]
    pods.put("c", "10.0.0.3")
    await until(lambda: "10.0.0.3:8000" in seen[-1])
    pods.put("a", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z")
    await until(lambda: "10.0.0.1:8000" not in seen[-1])
    server.remove("pods", "c")
    await until(lambda: seen[-1] == ["[fd00::2]:8000", "[fd00::2]:8001"])


async def test_a_pool_may_come_later_change_and_go(
    server: KubeServer, seen: list[list[str]], follower: PoolFollower
) -> None:
    pods = Pods(server)
    pods.put("a", "10.0.0.1")
    pods.put("b", "10.0.0.2", app="new")
    await follower.start()
    assert seen[-1] == []
    put_pool(server, "llm", 8000)
    await until(lambda: seen[-1] == ["10.0.0.1:8000"])
    put_pool(server, "llm", 9000)
    await until(lambda: seen[-1] == ["10.0.0.1:9000"])
    put_pool(server, "new", 9000)
    await until(lambda: seen[-1] == ["10.0.0.2:9000"])
    server.remove("inferencepools", "llm")
    await until(lambda: seen[-1] == [])


async def test_while_the_api_server_is_down_the_known_endpoints_stay(
    server: KubeServer, seen: list[list[str]], follower: PoolFollower
) -> None:
    put_pool(server, "llm", 8000)
    Pods(server).put("a", "10.0.0.1")
    await follower.start()
    await until(lambda: server.watches == 2)
    await server.stop()
    await until(lambda: server.watches == 0)
    await server.begin()
    await until(lambda: server.watches == 2)
    Pods(server).put("b", "10.0.0.2")
    await until(lambda: seen[-1] == ["10.0.0.1:8000", "10.0.0.2:8000"])
    assert [] not in seen
