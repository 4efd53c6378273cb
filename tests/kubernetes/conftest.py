"""One cluster for the tests with a real control plane; tests keep apart by namespaces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from support.cluster import operating, workloads
from support.cluster.running import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if why := why_not():
        pytest.fail(f"no cluster: {why}")
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.define(workloads.DEFINITION.read_text(), "dynamoworkermetadatas")
        for plural, file in operating.DEFINITIONS.items():
            made.define(file.read_text(), plural)
        yield made


NUMBERS = itertools.count()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """An empty namespace, whose pods are ended after the test."""
    name = f"serving-{next(NUMBERS)}"
    cluster.kubectl("create", "namespace", name)
    cluster.apply(workloads.RIGHTS.read_text(), name)
    cluster.apply(workloads.documents(workloads.plane_secret()), name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def deploy(cluster: Cluster, namespace: str) -> Callable[..., None]:
    """Apply objects, and wait until their Deployments are available."""

    def applied(*objects: workloads.Object) -> None:
        cluster.apply(workloads.documents(*objects), namespace)
        names = [f"deployment/{each['metadata']['name']}" for each in objects if each["kind"] == "Deployment"]
        if names:
            cluster.wait("--for=condition=Available", *names, namespace=namespace)

    return applied
