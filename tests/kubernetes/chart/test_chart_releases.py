"""Releases of the chart in a real control plane that has nothing of Dynamo before."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster.operating import aggregated
from support.cluster.places import ROOT
from support.cluster.running import Cluster, why_not
from support.waiting import PATIENCE, until_sync

pytestmark = pytest.mark.kubernetes

CHART = str(ROOT / "deploy" / "helm" / "dynamo")
EXAMPLE = ROOT / "examples" / "kubernetes" / "aggregated.yaml"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
NUMBERS = itertools.count()
Object = dict[str, Any]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without the definitions: Helm brings them."""
    if why := why_not():
        pytest.fail(f"no cluster: {why}")
    with Cluster(tmp_path_factory.mktemp("empty")) as made:
        yield made


class Release:
    """`helm … dynamo -n NAMESPACE`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def install(self, *values: str) -> None:
        self._place("install", *values)

    def upgrade(self, *values: str, words: tuple[str, ...] = ()) -> None:
        self._place("upgrade", *values, words=words)

    def _place(self, verb: str, *values: str, words: tuple[str, ...] = ()) -> None:
        sets = [word for value in values for word in ("--set", value)]
        self.helm(verb, "dynamo", CHART, "--wait", f"--timeout={PATIENCE:.0f}s", *sets, *words)

    def helm(self, *words: str) -> str:
        return self.cluster.run("helm", *words, "-n", self.namespace)

    def operator(self) -> Object:
        return self.cluster.get("deployment", "dynamo-operator", "-n", self.namespace)

    def ready(self, graph: str) -> None:
        self.cluster.wait("--for=condition=Ready", f"dgd/{graph}", namespace=self.namespace)

    def answer(self, graph: str) -> Object:
        url = f"http://{self.frontend(graph)}:8000"
        until_sync(lambda: self.cluster.http(f"{url}/v1/models")["data"])
        return self.cluster.http(f"{url}/v1/chat/completions", CHAT)

    def frontend(self, graph: str) -> str:
        chosen = f"nvidia.com/dynamo-component=Frontend,nvidia.com/dynamo-graph-deployment-name={graph}"
        pods = self.cluster.get("pods", "-n", self.namespace, "-l", chosen)["items"]
        return str(pods[0]["status"]["podIP"])

    def objects(self) -> set[str]:
        """All of the namespace but events, and the rights in the cluster."""
        kinds = self.cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
        listed = ",".join(each for each in kinds if not each.startswith("events") and "metrics" not in each)
        found = self.cluster.kubectl("get", listed, "-n", self.namespace, "-o", "name").split()
        return {*found, *self.cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()}


@pytest.fixture
def release(empty: Cluster) -> Iterator[Release]:
    name = f"release-{next(NUMBERS)}"
    empty.kubectl("create", "namespace", name)
    # An account with its token, and a certificate, are in every namespace.
    until_sync(lambda: "kube-root-ca.crt" in empty.kubectl("get", "configmaps", "-n", name, "-o", "name"))
    until_sync(lambda: any(each.get("secrets") for each in empty.get("serviceaccounts", "-n", name)["items"]))
    yield Release(empty, name)
    empty.kubectl("delete", "namespace", name, "--wait=false")


def test_from_helm_install_to_an_answer(release: Release) -> None:
    """The quickstart, word for word: the example's graph, and the notes' test."""
    release.install()
    said = release.helm("test", "dynamo", "--logs")
    assert "Phase:          Succeeded" in said
    assert f"leads; graphs of the namespace {release.namespace}: 0" in said
    release.cluster.apply(EXAMPLE.read_text(), release.namespace)
    release.ready("aggregated")
    assert release.answer("aggregated")["usage"]["completion_tokens"] == 8


def test_upgrades_and_a_rollback_of_the_operator_touch_no_request(release: Release) -> None:
    release.install()
    release.cluster.apply(json.dumps(aggregated()), release.namespace)
    release.ready("aggregated")
    release.answer("aggregated")
    workers = release.cluster.get("pods", "-n", release.namespace, "-l", "nvidia.com/dynamo-component=worker")
    with release.cluster.asking(release.namespace, "aggregated-frontend", 2) as asking:
        asking.more(10)
        release.upgrade("operator.replicas=2", "operator.env[0].name=DYN_LOG", "operator.env[0].value=debug")
        assert release.operator()["spec"]["replicas"] == 2
        assert "dynamo-operator" in release.cluster.kubectl("get", "pdb", "-n", release.namespace, "-o", "name")
        release.upgrade("operator.env[0].name=DYN_LOG", "operator.env[0].value=info", words=FORCED)
        release.helm("rollback", "dynamo", "1", "--wait", f"--timeout={PATIENCE:.0f}s")
        assert release.operator()["spec"]["replicas"] == 1
        assert "budget" not in release.cluster.kubectl("get", "pdb", "-n", release.namespace, "-o", "name", OPERATORS)
        asking.more(10)
        summary = asking.end()
    assert summary["failed"] == []
    assert len(summary["texts"]) == 1
    after = release.cluster.get("pods", "-n", release.namespace, "-l", "nvidia.com/dynamo-component=worker")
    assert [each["metadata"]["uid"] for each in after["items"]] == [
        each["metadata"]["uid"] for each in workers["items"]
    ]
    said = release.helm("test", "dynamo", "--logs")
    assert f"leads; graphs of the namespace {release.namespace}: 1" in said


FORCED = ("--force-replace", "--server-side=false")
OPERATORS = "-lapp.kubernetes.io/component=operator"


@pytest.mark.parametrize("values", [(), ("operator.replicas=2", "operator.allNamespaces=true")])
def test_an_uninstalled_release_leaves_nothing(release: Release, values: tuple[str, ...]) -> None:
    before = release.objects()
    release.install("networkPolicy.enabled=true", *values)
    release.helm("test", "dynamo")
    assert release.objects() > before
    release.helm("uninstall", "dynamo", "--wait", f"--timeout={PATIENCE:.0f}s")
    # Its pods end by themselves.
    until_sync(lambda: not release.objects() - before)


def test_graphs_serve_on_without_their_operator(release: Release) -> None:
    before = release.objects()
    release.install()
    release.cluster.apply(json.dumps(aggregated()), release.namespace)
    release.ready("aggregated")
    release.answer("aggregated")
    release.helm("uninstall", "dynamo", "--wait", f"--timeout={PATIENCE:.0f}s")
    assert release.answer("aggregated")["usage"]["completion_tokens"] == 8
    release.cluster.kubectl("delete", "dgd", "aggregated", "-n", release.namespace)
    until_sync(lambda: not release.objects() - before)
