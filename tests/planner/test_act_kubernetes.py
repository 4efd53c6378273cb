"""Workers as pods, against a stand-in for the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kubernetes.api import KubernetesApi, decoded
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.errors import KubernetesError
from dynamo.planner import Planner, PlannerConfig, TrafficSeen
from dynamo.planner.act.graphs import GraphActor, ScaledGraph
from dynamo.planner.act.kubernetes import kubernetes_actor
from dynamo.planner.act.workloads import Workload, WorkloadActor
from dynamo.planner.config import PlannerConfigError, parse_config
from dynamo.planner.parts import ActorError, Measurement, PoolLoad, PoolOrder
from support.kube_server import KubeServer

CONFIG = PlannerConfig(environment="kubernetes", optimization_target="sla", ttft_ms=4000.0)
DISAGG = PlannerConfig(environment="kubernetes", mode="disagg", prefill_component="statefulset/prefill")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KubeServer]:
    async with KubeServer(tmp_path) as made:
        made.put("deployments", "worker", {"replicas": 2}, {"readyReplicas": 2, "updatedReplicas": 2})
        made.put("statefulsets", "prefill", {"replicas": 1}, {"readyReplicas": 1})
        yield made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first\n")
    return tmp_path / "token"


@pytest.fixture
async def api(server: KubeServer, token: Path) -> AsyncIterator[KubernetesApi]:
    access = ClusterAccess(server=server.url, origin="a test", namespace="serving", ca=server.ca, token=token)
    async with KubernetesApi(access) as made:
        yield made


async def test_a_deployment_is_scaled_and_pods_that_are_not_ready_are_starting(
    server: KubeServer, api: KubernetesApi
) -> None:
    actor = kubernetes_actor(api, CONFIG)
    assert await actor.read() == {"decode": PoolOrder(wanted=2, starting=0)}
    await actor.scale({"decode": 5})
    assert await actor.read() == {"decode": PoolOrder(wanted=5, starting=3)}
    assert server.calls == [("get", "deployments"), ("patch", "deployments/scale"), ("get", "deployments")]


async def test_only_the_role_whose_number_changes_is_written(server: KubeServer, api: KubernetesApi) -> None:
    actor = kubernetes_actor(api, DISAGG)
    await actor.read()
    await actor.scale({"prefill": 3, "decode": 2})
    assert server.calls[2:] == [("patch", "statefulsets/scale")]
    assert (await actor.read())["prefill"] == PoolOrder(wanted=3, starting=2)


async def test_what_someone_else_changed_meanwhile_is_not_overwritten(server: KubeServer, api: KubernetesApi) -> None:
    actor = kubernetes_actor(api, CONFIG)
    await actor.read()
    server.put("deployments", "worker", {"replicas": 7})
    with pytest.raises(ActorError, match=r"deployments\.apps 'worker' was changed since it was read") as caught:
        await actor.scale({"decode": 3})
    assert caught.value.unchanged == {"decode"}
    assert server.replicas("deployments", "worker") == 7


async def test_a_conflict_of_one_role_does_not_stop_the_other(server: KubeServer, api: KubernetesApi) -> None:
    actor = kubernetes_actor(api, DISAGG)
    await actor.read()
    server.put("statefulsets", "prefill", {"replicas": 4})
    with pytest.raises(ActorError) as caught:
        await actor.scale({"prefill": 2, "decode": 6})
    assert caught.value.unchanged == {"prefill"}
    assert server.replicas("deployments", "worker") == 6


async def test_a_token_that_is_replaced_is_read_again(server: KubeServer, api: KubernetesApi, token: Path) -> None:
    actor = kubernetes_actor(api, CONFIG)
    await actor.read()
    server.tokens = {"second"}
    with pytest.raises(ActorError, match="does not accept the credentials of a test: Unauthorized"):
        await actor.read()
    token.write_text("second")
    assert (await actor.read())["decode"].wanted == 2
    token.unlink()
    with pytest.raises(ActorError, match="the token cannot be read: No such file"):
        await actor.read()


async def test_a_right_that_is_missing_is_named(server: KubeServer, api: KubernetesApi) -> None:
    actor = kubernetes_actor(api, CONFIG)
    sentence = "RBAC must allow the verb '{}' on '{}' of the API group 'apps' in the namespace 'serving': "
    server.forbidden = {("patch", "deployments/scale")}
    await actor.read()
    with pytest.raises(ActorError, match=sentence.format("patch", "deployments/scale")):
        await actor.scale({"decode": 3})
    server.forbidden = {("get", "deployments")}
    with pytest.raises(ActorError, match=sentence.format("get", "deployments")):
        await actor.read()


async def test_a_workload_that_is_not_there_is_named(server: KubeServer, api: KubernetesApi) -> None:
    actor = kubernetes_actor(api, PlannerConfig(environment="kubernetes", decode_component="gone"))
    with pytest.raises(ActorError, match=r"there is no deployments\.apps 'gone' in the namespace 'serving'"):
        await actor.read()


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"\xff\x00", "its answer for deployments.apps 'worker' is not Kubernetes'"),
        (200, b"{}", "is not Kubernetes'"),
        (200, b'{"metadata": {"resourceVersion": ""}, "spec": {"replicas": 1}}', "is not Kubernetes'"),
        (200, b'{"metadata": {"resourceVersion": "1"}, "spec": {"replicas": -1}}', "is not Kubernetes'"),
        (200, b"[" * 100_000, "is not Kubernetes'"),
        (200, b" " * (9 << 20), "answers with more than 8 MB"),
        (404, b"404 page not found\n", "knows no deployments of apps/v1"),
        (500, b"\xff\xfe", "answers 500 for deployments.apps 'worker'"),
        (503, b'{"message": "etcd is\\n gone"}', "answers 503 for deployments.apps 'worker': etcd is gone"),
        (302, b"", "answers 302"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_an_actor_error_of_one_line(
    server: KubeServer, api: KubernetesApi, status: int, body: bytes, sentence: str
) -> None:
    server.answer = status, body
    with pytest.raises(ActorError) as caught:
        await kubernetes_actor(api, CONFIG).read()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_server_that_is_gone_or_another_is_an_actor_error(server: KubeServer, api: KubernetesApi) -> None:
    strangers = ClusterAccess(server=server.url, origin="a test", namespace="serving", token=b"first")
    async with KubernetesApi(strangers) as foreign:
        with pytest.raises(ActorError, match="CERTIFICATE_VERIFY_FAILED"):
            await kubernetes_actor(foreign, CONFIG).read()
    await server.stop()
    said = set()
    for _ in range(2):
        with pytest.raises(ActorError, match="Connect call failed") as caught:
            await kubernetes_actor(api, CONFIG).read()
        said.add(str(caught.value))
    assert len(said) == 1


async def test_a_server_that_fails_may_have_changed_the_number(server: KubeServer, api: KubernetesApi) -> None:
    actor = kubernetes_actor(api, CONFIG)
    await actor.read()
    server.answer = 504, b"{}"
    with pytest.raises(ActorError, match="answers 504") as caught:
        await actor.scale({"decode": 3})
    assert caught.value.unchanged == set()


GRAPH: dict[str, Any] = {
    "services": {
        "Frontend": {"replicas": 1},
        "VllmPrefillWorker": {"subComponentType": "prefill", "replicas": 1},
        "VllmDecodeWorker": {"subComponentType": "decode", "replicas": 2, "resources": {"limits": {"gpu": "1"}}},
    }
}


async def test_services_of_a_graph_deployment_are_found_by_their_kind_and_scaled(
    server: KubeServer, api: KubernetesApi
) -> None:
    status = {"services": {"VllmDecodeWorker": {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 1}}}
    server.put("dynamographdeployments", "llm", GRAPH, status)
    config = PlannerConfig(environment="kubernetes", mode="disagg", graph_deployment="llm")
    actor = kubernetes_actor(api, config)
    assert isinstance(actor, GraphActor)
    assert await actor.read() == {
        "prefill": PoolOrder(wanted=1, starting=None),
        "decode": PoolOrder(wanted=2, starting=1),
    }
    await actor.scale({"prefill": 1, "decode": 4})
    services = server.objects["dynamographdeployments", "llm"]["spec"]["services"]
    assert services["VllmDecodeWorker"] == GRAPH["services"]["VllmDecodeWorker"] | {"replicas": 4}
    assert services["Frontend"] == {"replicas": 1}
    with pytest.raises(ActorError, match="was changed since it was read") as caught:
        await actor.scale({"prefill": 1, "decode": 5})
    assert caught.value.unchanged == {"prefill", "decode"}


async def test_components_of_v1beta1_are_scaled_in_the_graph_or_by_their_adapter(
    server: KubeServer, api: KubernetesApi
) -> None:
    components: list[dict[str, Any]] = [
        {"name": "Frontend", "type": "frontend", "replicas": 1},
        {"name": "Prefill", "type": "prefill", "replicas": 1, "scalingAdapter": {}},
        {"name": "worker", "type": "decode", "podTemplate": {"spec": {}}},
    ]
    server.put("dynamographdeployments", "llm", {"components": components}, {"components": {}})
    server.put("dynamographdeploymentscalingadapters", "llm-prefill", {"replicas": 3})
    config = PlannerConfig(environment="kubernetes", mode="disagg", graph_deployment="llm")
    actor = kubernetes_actor(api, config)
    orders = await actor.read()
    assert {role: order.wanted for role, order in orders.items()} == {"prefill": 3, "decode": 1}
    await actor.scale({"prefill": 4, "decode": 2})
    assert server.replicas("dynamographdeploymentscalingadapters", "llm-prefill") == 4
    changed = server.objects["dynamographdeployments", "llm"]["spec"]["components"]
    assert changed == [*components[:2], {**components[2], "replicas": 2}]


@pytest.mark.parametrize(
    ("services", "sentence"),
    [
        ({"Frontend": {}}, "has no component 'worker', and 0 for the role 'decode'; it has Frontend"),
        ({"a": {"subComponentType": "decode"}, "b": {"subComponentType": "decode"}}, "and 2 for the role"),
        ({"worker": {"scalingAdapter": {"enabled": True}}}, "there is no dynamographdeploymentscalingadapters"),
    ],
)
async def test_a_graph_deployment_that_cannot_be_scaled_says_why(
    server: KubeServer, api: KubernetesApi, services: dict[str, Any], sentence: str
) -> None:
    server.put("dynamographdeployments", "llm", {"services": services})
    config = PlannerConfig(environment="kubernetes", graph_deployment="llm")
    with pytest.raises(ActorError, match=sentence):
        await kubernetes_actor(api, config).read()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"decode_component": "Worker_1"}, "decode_component: 'Worker_1' is no name of Kubernetes"),
        ({"decode_component": "../secrets"}, "'../secrets' is neither NAME nor deployment/NAME"),
        ({"decode_component": "pod/worker"}, "is neither NAME nor deployment/NAME nor statefulset/NAME"),
        ({"graph_deployment": "a b"}, "graph_deployment: 'a b' is no name"),
        ({"mode": "disagg", "prefill_component": "worker"}, "must not be the same"),
    ],
)
def test_a_name_that_kubernetes_cannot_have_is_refused(keys: dict[str, Any], sentence: str) -> None:
    api = KubernetesApi(ClusterAccess(server="https://127.0.0.1:1", origin="a test"))
    with pytest.raises(PlannerConfigError, match=sentence):
        kubernetes_actor(api, PlannerConfig(environment="kubernetes", **keys))


def test_a_deployment_is_scaled_also_inside_a_graph_deployment_if_it_is_named_so() -> None:
    api = KubernetesApi(ClusterAccess(server="https://127.0.0.1:1", origin="a test"))
    config = PlannerConfig(environment="kubernetes", graph_deployment="llm", decode_component="deployment/mine")
    assert isinstance(kubernetes_actor(api, config), WorkloadActor)


async def test_the_manifest_has_the_rights_that_are_used_and_a_valid_configuration(
    server: KubeServer, api: KubernetesApi
) -> None:
    manifest = Path(__file__).parents[2] / "deploy" / "kubernetes" / "planner.yaml"
    things = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(manifest.read_text())}
    config = parse_config(things["ConfigMap", "planner"]["data"]["planner.yaml"])
    actor = kubernetes_actor(api, config)
    await actor.read()
    await actor.scale({"decode": 3})
    allowed = {
        (verb, resource)
        for rule in things["Role", "planner"]["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if rule["apiGroups"] == ["apps"] and rule["resourceNames"] == [config.decode_component]
    }
    assert set(server.calls) <= allowed
    assert things["Deployment", config.decode_component]


class BusySource:
    """A frontend that misses its target, however many workers there are."""

    def __init__(self, server: KubeServer) -> None:
        self._server = server

    async def read(self) -> Measurement:
        traffic = TrafficSeen(requests=5, ttft=9.0, first_tokens=5, input_tokens=100, output_tokens=10)
        # All pods are ready at once.
        count = self._server.replicas("deployments", "worker")
        self._server.objects["deployments", "worker"]["status"] = {"readyReplicas": count}
        return Measurement(traffic=traffic, pools={"decode": PoolLoad(serving=count)})


async def test_a_number_set_by_hand_between_reading_and_scaling_is_kept(server: KubeServer, api: KubernetesApi) -> None:
    planner = Planner(CONFIG, BusySource(server), kubernetes_actor(api, CONFIG))
    await planner.tick()
    server.before_change = lambda: server.put("deployments", "worker", {"replicas": 3})
    decision = await planner.tick()
    assert decision.decode
    assert (decision.decode.state, decision.decode.workers) == ("scale_up", 3)
    decision = await planner.tick()
    assert decision.decode
    assert decision.decode.state == "manual_change"
    assert server.replicas("deployments", "worker") == 3


async def test_a_change_whose_answer_was_lost_is_not_taken_for_someone_elses(
    server: KubeServer, api: KubernetesApi
) -> None:
    planner = Planner(CONFIG, BusySource(server), kubernetes_actor(api, CONFIG))
    await planner.tick()

    def change_and_fail() -> None:
        server.put("deployments", "worker", {"replicas": 3})
        raise ConnectionResetError

    server.before_change = change_and_fail
    await planner.tick()
    assert server.replicas("deployments", "worker") == 3
    decision = await planner.tick()
    assert decision.decode
    assert decision.decode.state != "manual_change"


async def test_an_outage_changes_nothing_and_is_survived(
    server: KubeServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    planner = Planner(CONFIG, BusySource(server), kubernetes_actor(api, CONFIG))
    await planner.tick()
    server.answer = 503, b"{}"
    for _ in range(3):
        assert (await planner.tick()).decode is None
    assert "the number of workers cannot be read" in caplog.text
    server.answer = None
    await planner.tick()
    await planner.tick()
    assert server.replicas("deployments", "worker") == 3


async def test_advice_writes_nothing(server: KubeServer, api: KubernetesApi) -> None:
    config = msgspec.structs.replace(CONFIG, advisory=True)
    planner = Planner(config, BusySource(server), kubernetes_actor(api, config))
    for _ in range(3):
        await planner.tick()
    assert {verb for verb, _ in server.calls} == {"get"}


@given(st.binary(max_size=200))
def test_any_answer_is_read_or_refused(data: bytes) -> None:
    for kind in (Workload, ScaledGraph):
        try:
            decoded(data, kind, "an answer")
        except KubernetesError:
            pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["replicas", "services", "x"]), inner),
    max_leaves=8,
)


@given(st.fixed_dictionaries({"metadata": json_values, "spec": json_values, "status": json_values}))
def test_any_object_is_read_or_refused(thing: Mapping[str, Any]) -> None:
    data = msgspec.json.encode({**thing, "metadata": {"resourceVersion": "1"}}) if thing["metadata"] else b"{}"
    for kind in (Workload, ScaledGraph):
        try:
            decoded(data, kind, "an answer")
        except KubernetesError:
            pass
