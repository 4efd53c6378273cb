"""DynamoModels in a real control plane: adapters on every worker of their base model."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import child_engine
from support.cluster.operating import component, graph, operator
from support.cluster.places import FOLDER
from support.cluster.running import Cluster
from support.distribution import install
from support.waiting import until_sync

pytestmark = pytest.mark.kubernetes

Object = dict[str, Any]


@pytest.fixture
def engine() -> Iterator[Path]:
    """An engine that can load adapters, where pods see it, and an adapter beside it."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    modules = {"child_engine.py": Path(child_engine.__file__).read_text()}
    install(folder, "children", modules, "child = child_engine:ENTRY")
    (folder / "poet").mkdir()
    (folder / "poet" / "adapter_config.json").write_text("{}")
    (folder / "poet" / "adapter_model.safetensors").write_bytes(b"")
    yield folder
    shutil.rmtree(folder)


def adapters(cluster: Cluster, namespace: str) -> list[list[str]]:
    """The adapters of each worker."""
    pods = cluster.get("pods", "-n", namespace, "-l", "nvidia.com/dynamo-component=worker")["items"]
    token = cluster.get("secret", "adapted-plane", "-n", namespace)["data"]["token"]
    plain = cluster.run("base64", "--decode", text=token)
    answers = [
        cluster.run(
            "curl", "--silent", "--header", f"Authorization: Bearer {plain}",
            f"http://{pod['status']['podIP']}:9090/v1/loras",
        )
        for pod in pods
    ]  # fmt: skip
    return [list(json.loads(each)["loras"]) for each in answers]


def test_every_worker_of_the_base_model_has_the_adapter_also_one_that_comes_later(
    cluster: Cluster, namespace: str, deploy: Callable[..., None], engine: Path
) -> None:
    deploy(*operator())
    worker = component("worker", "worker", "-m", "dynamo.worker", "child", "--model", "tiny")
    [main] = worker["podTemplate"]["spec"]["containers"]
    main["env"][0]["value"] += f":{engine}"
    shown = graph("adapted", {**worker, "modelRef": {"name": "tiny"}, "scalingAdapter": {}})
    model = {
        "apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoModel", "metadata": {"name": "poet"},
        "spec": {
            "modelName": "poet", "baseModelName": "tiny", "modelType": "lora",
            "source": {"uri": f"file://{engine / 'poet'}"},
        },
    }  # fmt: skip
    cluster.apply(json.dumps(model), namespace)
    until_sync(lambda: "no worker of the base model is ready" in message(cluster, namespace))
    cluster.apply(json.dumps(shown), namespace)
    until_sync(lambda: ready(cluster, namespace) == (1, 1))
    assert adapters(cluster, namespace) == [["poet"]]
    cluster.kubectl("scale", "-n", namespace, "dgdsa/adapted-worker", "--replicas=2")
    until_sync(lambda: ready(cluster, namespace) == (2, 2))
    assert adapters(cluster, namespace) == [["poet"], ["poet"]]
    cluster.kubectl("delete", "dm", "poet", "-n", namespace)
    assert adapters(cluster, namespace) == [[], []]


def status(cluster: Cluster, namespace: str) -> Object:
    found: Object = cluster.get("dm", "poet", "-n", namespace).get("status", {})
    return found


def ready(cluster: Cluster, namespace: str) -> tuple[int, int]:
    found = status(cluster, namespace)
    return found.get("readyEndpoints", 0), found.get("totalEndpoints", 0)


def message(cluster: Cluster, namespace: str) -> str:
    return "".join(each["message"] for each in status(cluster, namespace).get("conditions", []))
