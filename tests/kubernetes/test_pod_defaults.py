"""What a process in a pod takes from its environment without being told."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from dynamo.frontend.config import FrontendConfig
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.kubernetes.pod import PodIdentity, find_pod
from dynamo.planner.__main__ import PlannerSettings
from dynamo.planner.config import PlannerConfig
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.status import StatusConfig
from dynamo.settings.worker import WorkerSettings

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
NAMED = PodIdentity("worker-0", "4711")


def test_a_frontend_and_its_status_are_reached_from_outside_the_pod() -> None:
    assert FrontendConfig.from_env(IN_A_POD).host in ("0.0.0.0", "::")
    assert FrontendConfig.from_env({**IN_A_POD, "DYN_HTTP_HOST": "127.0.0.1"}).host == "127.0.0.1"
    assert StatusConfig.from_env(IN_A_POD).host in ("0.0.0.0", "::")
    assert StatusConfig.from_env({}).host == "127.0.0.1"


def test_the_port_of_a_frontend_has_two_names() -> None:
    assert FrontendConfig.from_env({"DYNAMO_PORT": "8000"}).port == 8000
    assert FrontendConfig.from_env({"DYNAMO_PORT": "8000", "DYN_HTTP_PORT": "8001"}).port == 8001


def test_a_worker_takes_its_component_from_the_environment() -> None:
    assert WorkerSettings.from_env({"DYN_COMPONENT": "decode"}, model="tiny").component == "decode"


def test_a_planner_takes_the_places_of_metrics_where_its_configuration_has_none() -> None:
    environ = {"PROMETHEUS_ENDPOINT": "http://prometheus:9090", "PLANNER_PROMETHEUS_PORT": "9085"}
    asked = PlannerSettings.from_env(environ, config="{}")
    config = asked.fill(PlannerConfig())
    assert config.metric_pulling_prometheus_endpoint == "http://prometheus:9090"
    assert config.metric_reporting_prometheus_port == 9085
    assert asked.fill(PlannerConfig(metric_reporting_prometheus_port=0)).metric_reporting_prometheus_port == 0


def test_discovery_through_kubernetes_without_a_cluster_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ClusterAccessError, match="KUBERNETES_SERVICE_HOST is not set"):
        RuntimeConfig.from_env({"DYN_DISCOVERY_BACKEND": "kubernetes", "HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"DYN_KUBE_DISCOVERY_MODE": "container"}, "needs CONTAINER_NAME"),
        ({"DYN_KUBE_DISCOVERY_MODE": "node"}, "DYN_KUBE_DISCOVERY_MODE must be pod or container, not 'node'"),
    ],
)
def test_a_wrong_variable_of_this_discovery_is_named(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RuntimeConfig.from_env({"DYN_DISCOVERY_BACKEND": "kubernetes", **environ})


def token(pod: dict[str, str]) -> str:
    claims = json.dumps({"kubernetes.io": {"namespace": "serving", "pod": pod}}).encode()
    return f"header.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


def test_a_pod_is_known_by_its_environment_its_files_or_its_token(tmp_path: Path) -> None:
    podinfo, account = tmp_path / "podinfo", tmp_path / "account"
    for folder in (podinfo, account):
        folder.mkdir()
    assert find_pod({}, podinfo, account) is None
    (account / "token").write_text(token({"name": "worker-0", "uid": "4711"}))
    assert find_pod({}, podinfo, account) == NAMED
    assert find_pod({"POD_NAME": "another"}, podinfo, account) is None
    (podinfo / "pod_name").write_text("worker-1\n")
    (podinfo / "pod_uid").write_text("4712\n")
    assert find_pod({}, podinfo, account) == PodIdentity("worker-1", "4712")
    assert find_pod({"POD_NAME": "worker-0", "POD_UID": "4711"}, podinfo, account) == NAMED


@pytest.mark.parametrize("text", ["", "opaque", "a.b.c", "a.e30.c", "a.%.c", "a.bnVsbA.c"])
def test_a_token_that_names_no_pod_is_no_identity(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    assert find_pod({}, tmp_path, tmp_path) is None
