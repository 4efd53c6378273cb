"""Discovery through Kubernetes: what counts, whose objects they are, and what outages and bad objects change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols.instance import Instance
from dynamo.runtime import records
from dynamo.runtime.discovery import Delete, DiscoveryError, Put
from dynamo.runtime.discovery.kubernetes.data import from_data, to_data
from dynamo.runtime.discovery.kubernetes.merge import (
    EndpointConditions,
    EndpointSlice,
    ObjectReference,
    Pod,
    PodPlace,
    Published,
    SliceEndpoint,
    WorkerMetadata,
    live_records,
    published,
    ready_containers,
    ready_pods,
)
from dynamo.runtime.events.channel import channel_address
from dynamo.runtime.events.zmq import CHANNELS, EventChannel
from dynamo.runtime.names import EndpointId, card_key, instance_key
from support.discovery_cluster import WORKERS, DiscoveryCluster
from support.following import changes_until, snapshot
from support.kube_server import KubeServer
from support.waiting import until

ENDPOINT = EndpointId("ns", "backend", "generate")
MALFORMED: tuple[Any, ...] = (3, {"other_records": {"v1/a": "%"}}, {"endpoints": {"x": {}}})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DiscoveryCluster]:
    async with KubeServer(tmp_path) as server:
        yield DiscoveryCluster(server, tmp_path)


def instance(number: int, **fields: object) -> bytes:
    named = {"namespace": "ns", "component": "backend", "endpoint": "generate"}
    return records.encode(
        msgspec.convert(
            {"instance_id": number, **named, "transport": "tcp", "address": "10.0.0.1:7", **fields}, Instance
        )
    )


async def test_a_worker_counts_while_its_pod_is_ready(cluster: DiscoveryCluster) -> None:
    cluster.set_ready("worker", False)
    async with cluster.discovery("worker") as worker, cluster.discovery("frontend") as frontend:
        await worker.put("v1/a", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            assert await snapshot(changes) == []
            cluster.set_ready("worker")
            await changes_until(changes, Put("v1/a", b"1"))
            cluster.set_ready("worker", False)
            await changes_until(changes, Delete("v1/a"))


async def test_a_process_counts_for_itself_before_its_pod_is_ready(cluster: DiscoveryCluster) -> None:
    cluster.set_ready("worker", False)
    async with cluster.discovery("worker") as worker:
        await worker.put("v1/a", b"1")
        async with aclosing(worker.watch("v1/")) as changes:
            assert await snapshot(changes) == [Put("v1/a", b"1")]
        assert await worker.get_prefix("") == {"v1/a": b"1"}


async def test_processes_of_one_pod_have_objects_of_their_own(cluster: DiscoveryCluster) -> None:
    async with cluster.discovery("worker") as first, cluster.discovery("worker") as second:
        await first.put("v1/a", b"1")
        await second.put("v1/b", b"2")
        assert cluster.objects() == ["worker", "worker-2"]
        assert await first.get_prefix("v1/") == {"v1/a": b"1", "v1/b": b"2"}
    assert cluster.objects() == []


async def test_a_container_that_starts_again_replaces_what_its_processes_left(cluster: DiscoveryCluster) -> None:
    for name in ("worker", "worker-2", "worker-x"):
        cluster.server.put_object(WORKERS, left_by("worker", name))
    async with cluster.discovery("worker") as again:
        await again.put("v1/b", b"2")
        await until(lambda: cluster.objects() == ["worker", "worker-x"])
        assert (await again.get_prefix("v1/"))["v1/b"] == b"2"


def left_by(pod: str, name: str) -> dict[str, object]:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-of-{pod}"}
    labels = {"nvidia.com/dynamo-pod-uid": f"uid-of-{pod}"}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"data": to_data({f"v1/left-by-{name}": b""})}}


async def test_an_object_of_a_pod_that_another_of_its_name_followed_does_not_count(cluster: DiscoveryCluster) -> None:
    old = left_by("worker", "worker")
    old["metadata"]["ownerReferences"][0]["uid"] = "of an older pod"  # type: ignore[index]
    cluster.server.put_object(WORKERS, old)
    cluster.set_ready("worker")
    async with cluster.discovery("frontend") as frontend:
        assert await frontend.get_prefix("") == {}


async def test_an_object_is_owned_by_its_pod_and_written_again_when_it_was_deleted(
    cluster: DiscoveryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamo.runtime.discovery.kubernetes.registration.REFRESH", 0.05)
    async with cluster.discovery("worker") as worker:
        await worker.put("v1/a", b"1")
        [owner] = cluster.server.objects[WORKERS, "worker"]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "worker", "uid-of-worker")
        cluster.server.remove(WORKERS, "worker")
        await until(lambda: cluster.objects() == ["worker"])


async def test_an_outage_keeps_known_workers_and_stores_what_was_put_meanwhile(cluster: DiscoveryCluster) -> None:
    async with cluster.discovery("worker") as worker, cluster.discovery("frontend") as frontend:
        await worker.put("v1/a", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            await changes_until(changes, Put("v1/a", b"1"))
            await cluster.server.stop()
            await worker.put("v1/b", b"2")
            with pytest.raises(DiscoveryError):
                await frontend.get_prefix("v1/")
            await cluster.server.begin()
            while (change := await anext(changes)) != Put("v1/b", b"2"):
                assert not isinstance(change, Delete)


async def test_an_unreadable_object_keeps_its_last_good_value(
    cluster: DiscoveryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.discovery("worker") as worker, cluster.discovery("frontend") as frontend:
        await worker.put("v1/a", b"1")
        async with aclosing(frontend.watch("v1/")) as changes:
            await changes_until(changes, Put("v1/a", b"1"))
            for broken in MALFORMED:
                caplog.clear()
                stored = cluster.server.objects[WORKERS, "worker"]
                cluster.server.put_object(WORKERS, {**stored, "spec": {"data": broken}})
                await until(lambda: "worker" in caplog.text)
            await worker.put("v1/a", b"2")
            while (change := await anext(changes)) != Put("v1/a", b"2"):
                assert not isinstance(change, Delete)


async def test_changes_of_many_pods_at_once_are_reported_together(cluster: DiscoveryCluster) -> None:
    async with cluster.discovery("frontend", gather=0.3) as frontend, aclosing(frontend.watch("v1/")) as changes:
        await snapshot(changes)
        for number in range(5):
            cluster.set_ready(f"worker-{number}")
            cluster.server.put_object(WORKERS, left_by(f"worker-{number}", f"worker-{number}"))
        await anext(changes)
        async with aclosing(frontend.watch("v1/")) as another:
            assert len(await snapshot(another)) == 5


async def test_a_right_that_is_missing_is_named_at_the_start(cluster: DiscoveryCluster) -> None:
    cluster.server.forbidden = {("list", "endpointslices")}
    with pytest.raises(DiscoveryError, match=r"must allow the verb 'list' on 'endpointslices'.*docs/kubernetes\.md"):
        await cluster.discovery().start()
    cluster.server.forbidden = set()
    cluster.server.unknown = {WORKERS}
    with pytest.raises(DiscoveryError, match="CustomResourceDefinition of DynamoWorkerMetadata"):
        await cluster.discovery().start()


async def test_a_worker_that_may_not_write_fails_with_the_right_it_needs(cluster: DiscoveryCluster) -> None:
    cluster.server.forbidden = {("patch", WORKERS)}
    async with cluster.discovery("worker") as worker:
        with pytest.raises(DiscoveryError, match="must allow the verb 'patch' on 'dynamoworkermetadatas'"):
            await worker.put("v1/a", b"1")
        cluster.server.forbidden = set()
        await worker.put("v1/b", b"1")
        assert await worker.get_prefix("") == {"v1/b": b"1"}


async def test_containers_of_one_pod_count_each_for_itself(cluster: DiscoveryCluster) -> None:
    status = [{"name": "main", "ready": True}, {"name": "other", "ready": False}]
    labels = {"nvidia.com/dynamo-discovery-enabled": "true"}
    pod = {"metadata": {"name": "worker", "uid": "uid-of-worker", "labels": labels}}
    cluster.server.put_object("pods", {**pod, "status": {"containerStatuses": status}})
    async with (
        cluster.discovery("worker", container="main") as main,
        cluster.discovery("worker", container="other") as other,
        cluster.discovery("frontend", container="main") as frontend,
    ):
        await main.put("v1/main", b"")
        await other.put("v1/other", b"")
        assert cluster.objects() == ["worker", "worker-other"]
        assert await frontend.get_prefix("") == {"v1/main": b""}


def test_an_instance_has_the_shape_of_ai_dynamo_in_the_object() -> None:
    key = instance_key(ENDPOINT, 0x1F)
    data = to_data({key: instance(0x1F, device_type="cuda")})
    assert data["endpoints"]["ns/backend/generate/1f"].items() >= {
        "type": "Endpoint", "namespace": "ns", "component": "backend", "endpoint": "generate", "instance_id": 0x1F,
        "transport": {"tcp": "10.0.0.1:7"}, "device_type": "cuda",
    }.items()  # fmt: skip
    [(back, value)] = from_data(data).items()
    assert back == key
    assert value == from_data(to_data({key: value}))[key]
    assert records.decode_instance(ENDPOINT, 0x1F, value) == records.decode_instance(
        ENDPOINT, 0x1F, instance(0x1F, device_type="cuda")
    )


def test_a_nats_subject_has_the_name_that_ai_dynamo_gives_it() -> None:
    key = instance_key(ENDPOINT, 1)
    data = to_data({key: instance(1, transport="nats", address="subject")})
    assert data["endpoints"]["ns/backend/generate/1"]["transport"] == {"nats_tcp": "subject"}
    assert b'"nats"' in from_data(data)[key]


def test_a_card_keeps_its_meaning_where_the_server_makes_empty_maps_null() -> None:
    key = card_key(ENDPOINT, 7)
    data = to_data({key: b'{"name":"tiny","a":{},"b":null,"c":1.0}'})
    model = data["model_cards"]["ns/backend/generate/7"]
    assert (model["type"], model["instance_id"], model["component"]) == ("Model", 7, "backend")
    model["card_json"]["a"] = None
    assert msgspec.json.decode(from_data(data)[key]) == {"name": "tiny", "c": 1.0}


def test_a_channel_of_events_is_readable_in_the_object() -> None:
    record = EventChannel(channel_address("10.0.0.1", 5), curve=True)
    data = to_data({CHANNELS + "1f": msgspec.msgpack.encode(record)})
    assert data["event_channels"]["1f"]["channel"] == {"address": record.address, "curve": True}
    assert msgspec.msgpack.decode(from_data(data)[CHANNELS + "1f"], type=EventChannel) == record


KEYS = st.sampled_from(["v1/instances/", "v1/mdc/", "v1/event_channels/", ""]).flatmap(
    lambda prefix: st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40).map(
        prefix.__add__
    )
)


@given(st.dictionaries(KEYS, st.binary(max_size=60), max_size=5))
def test_any_record_comes_back_through_json(stored: dict[str, bytes]) -> None:
    data = msgspec.json.decode(msgspec.json.encode(to_data(stored)))
    back = from_data(data)
    assert back.keys() == stored.keys()
    assert from_data(to_data(back)) == back


def endpoint_of(pod: str, ready: bool | None, uid: str = "u") -> SliceEndpoint:
    return SliceEndpoint(EndpointConditions(ready), ObjectReference("Pod", pod, uid))


def test_a_pod_is_ready_where_one_of_its_slices_says_so_or_nothing() -> None:
    slices = [
        EndpointSlice([endpoint_of("a", True), endpoint_of("b", False), endpoint_of("c", None)]),
        EndpointSlice([endpoint_of("a", False), endpoint_of("d", False)]),
        EndpointSlice(None),
        EndpointSlice([SliceEndpoint(EndpointConditions(True))]),
    ]
    assert ready_pods(slices) == {PodPlace("a"): "u", PodPlace("c"): "u"}


def test_a_container_of_a_pod_that_ends_is_not_ready() -> None:
    status = {"containerStatuses": [{"name": "main", "ready": True}, {"name": "side", "ready": False}]}
    pods = [
        msgspec.convert({"metadata": {"name": name, "uid": "u", **more}, "status": status}, Pod)
        for name, more in {"a": {}, "b": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}.items()
    ]
    assert ready_containers(pods) == {PodPlace("a", "main"): "u"}


def test_of_two_objects_with_one_key_the_newer_counts() -> None:
    objects = [
        Published(PodPlace(pod), "", created, {"v1/a": pod.encode()})
        for pod, created in (("old", "2026-01-01"), ("new", "2026-01-02"), ("gone", "2026-01-03"))
    ]
    assert live_records({PodPlace("new"): "u", PodPlace("old"): "u"}, objects) == {"v1/a": b"new"}


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_whatever_an_object_holds_is_records_or_a_value_error(spec: object) -> None:
    try:
        worker = msgspec.convert({"metadata": {"name": "a"}, "spec": {"data": spec}}, WorkerMetadata)
        published(worker)
    except (ValueError, msgspec.MsgspecError):
        pass


def test_an_object_that_is_nested_too_deeply_is_a_value_error() -> None:
    card: dict[str, Any] = {}
    for _ in range(5000):
        card = {"a": card}
    with pytest.raises(ValueError, match="is malformed"):
        from_data({"model_cards": {"ns/backend/generate/7": {"card_json": card}}})
