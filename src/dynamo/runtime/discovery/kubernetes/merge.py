"""What stands in discovery, as a pure function of the objects that a cluster has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from dynamo.runtime.discovery.kubernetes.data import from_data


class EndpointConditions(Struct, frozen=True):
    ready: bool | None = None
    """None is unknown, which stands for ready."""


class ObjectReference(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(Struct, frozen=True, rename="camel"):
    conditions: EndpointConditions = EndpointConditions()
    target_ref: ObjectReference | None = None


class EndpointSlice(Struct, frozen=True):
    """What is read of one: the pods behind a Service."""

    endpoints: list[SliceEndpoint] | None = None


class PodMetadata(Struct, frozen=True, rename="camel"):
    name: str
    uid: str = ""
    deletion_timestamp: str | None = None


class ContainerStatus(Struct, frozen=True):
    name: str
    ready: bool = False


class PodStatus(Struct, frozen=True, rename="camel"):
    container_statuses: list[ContainerStatus] | None = None


class Pod(Struct, frozen=True):
    """What is read of one where each container counts for itself."""

    metadata: PodMetadata
    status: PodStatus = PodStatus()


class WorkerMetadataMeta(Struct, frozen=True, rename="camel"):
    name: str
    labels: dict[str, str] | None = None
    creation_timestamp: str = ""
    owner_references: list[ObjectReference] | None = None


class WorkerMetadataSpec(Struct, frozen=True):
    data: dict[str, dict[str, Any] | None] | None = None


class WorkerMetadata(Struct, frozen=True):
    """A DynamoWorkerMetadata: the records of one process in one pod."""

    metadata: WorkerMetadataMeta
    spec: WorkerMetadataSpec = WorkerMetadataSpec()


CONTAINER_LABEL = "nvidia.com/dynamo-container"


class PodPlace(Struct, frozen=True):
    """What must be ready for records to count: a pod, or one container of it."""

    pod: str
    container: str = ""


class Published(Struct, frozen=True):
    """The records of one object, decoded once."""

    place: PodPlace
    pod_uid: str
    created: str
    records: Mapping[str, bytes]


Ready = Mapping[PodPlace, str]
"""Each place that is ready, with the uid of its pod."""


def published(worker: WorkerMetadata) -> Published:
    """A ValueError says what is malformed."""
    meta = worker.metadata
    owner = next((each for each in meta.owner_references or () if each.kind == "Pod"), None)
    container = (meta.labels or {}).get(CONTAINER_LABEL, "")
    return Published(
        PodPlace(owner.name if owner else meta.name, container),
        owner.uid if owner else "",
        meta.creation_timestamp,
        from_data(worker.spec.data or {}),
    )


def ready_pods(slices: Iterable[EndpointSlice]) -> Ready:
    """Pods that are ready behind one of their Services."""
    ready = {}
    for each in slices:
        for endpoint in each.endpoints or ():
            target = endpoint.target_ref
            if target and target.kind == "Pod" and endpoint.conditions.ready is not False:
                ready[PodPlace(target.name)] = target.uid
    return ready


def ready_containers(pods: Iterable[Pod]) -> Ready:
    """Containers that are ready, in pods that are not about to end."""
    return {
        PodPlace(pod.metadata.name, container.name): pod.metadata.uid
        for pod in pods
        if pod.metadata.deletion_timestamp is None
        for container in pod.status.container_statuses or ()
        if container.ready
    }


def live_records(ready: Ready, objects: Iterable[Published]) -> dict[str, bytes]:
    """The records of all whose place is ready. Of one key that two have, that of the newer object counts."""
    records: dict[str, bytes] = {}
    for each in sorted(objects, key=lambda one: (one.created, one.place.pod, one.place.container)):
        uid = ready.get(each.place)
        # Another uid: a pod of this name came after the one that wrote the object.
        if uid is not None and each.pod_uid in ("", uid):
            records.update(each.records)
    return records
