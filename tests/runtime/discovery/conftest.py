"""The backends behind one fixture: each call of `participant` is one more process's view of the same store."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dynamo.runtime.discovery import Discovery
from dynamo.runtime.discovery.etcd import EtcdConfig, EtcdDiscovery
from dynamo.runtime.discovery.file import FileDiscovery
from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore
from support.discovery_cluster import CONTRACT_NAMESPACE, DiscoveryCluster, RealPods
from support.following import Participant, QuickEtcd
from support.kube_server import KubeServer
from support.services import Etcd, free_port


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of the test's own, to stop and start quickly."""
    with QuickEtcd(tmp_path / "etcd", free_port()) as server:
        yield server


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DiscoveryCluster]:
    async with KubeServer(tmp_path) as server:
        yield DiscoveryCluster(server, tmp_path)


@pytest.fixture(params=["memory", "file", "etcd", "kubernetes"])
async def participant(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Participant]:
    make: Callable[[], Discovery]
    stack = AsyncExitStack()
    if request.param == "memory":
        store = MemoryStore()
        make = lambda: MemoryDiscovery(store)  # noqa: E731
    elif request.param == "file":
        make = lambda: FileDiscovery(tmp_path / "kv")  # noqa: E731
    elif request.param == "kubernetes":
        if os.environ.get(CONTRACT_NAMESPACE):
            make = RealPods(os.environ, tmp_path).discovery
        else:
            server = await stack.enter_async_context(KubeServer(tmp_path))
            make = DiscoveryCluster(server, tmp_path).discovery
    else:
        etcd: Etcd = request.getfixturevalue("shared_etcd")
        config = EtcdConfig(endpoints=(etcd.url,), prefix=f"dynamo-{secrets.token_hex(4)}/")
        make = lambda: EtcdDiscovery(config)  # noqa: E731
    opened: list[Discovery] = []

    async def one_more() -> Discovery:
        discovery = make()
        await discovery.start()
        opened.append(discovery)
        return discovery

    yield one_more
    for discovery in opened:
        await discovery.close()
    await stack.aclose()
