"""What calls of Kubernetes' API send and get, as far as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dynamo.kubernetes.resources import Resource

APPLY = "application/apply-patch+yaml"
Replicas = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class KubernetesStatus(Struct, frozen=True):
    """What the API server answers with an error."""

    message: str = ""
    reason: str = ""
    code: int = 0


class ListMetadata(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectPage(Struct, frozen=True):
    items: list[msgspec.Raw] | None
    metadata: ListMetadata


class Listing(Struct, frozen=True):
    """All objects of one moment, each as the server wrote it, and the version of that moment."""

    items: list[msgspec.Raw]
    version: str


class ScaleSpec(Struct, frozen=True):
    replicas: Replicas = 0


class ScaleStatus(Struct, frozen=True):
    replicas: Replicas = 0
    selector: str = ""


class ScaleObject(Struct, frozen=True):
    """The scale subresource of whatever has one."""

    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


class ApiCall(Struct, frozen=True, kw_only=True):
    """One request, as it is sent and as messages name it."""

    verb: str
    """RBAC's word for it."""
    method: str
    resource: Resource
    namespace: str
    name: str = ""
    subresource: str = ""
    params: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.resource} '{self.name}'" if self.name else str(self.resource)
