"""Which pod this process runs in."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from dynamo.kubernetes.cluster import SERVICE_ACCOUNT
from dynamo.kubernetes.files import ClusterAccessError, line

PODINFO = Path("/etc/podinfo")


class PodIdentity(Struct, frozen=True):
    name: str
    uid: str


class _BoundPod(Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _KubernetesClaims(Struct, frozen=True):
    pod: _BoundPod = _BoundPod()


class _Claims(Struct, frozen=True):
    kubernetes: _KubernetesClaims = msgspec.field(default=_KubernetesClaims(), name="kubernetes.io")


def find_pod(
    environ: Mapping[str, str], podinfo: Path = PODINFO, service_account: Path = SERVICE_ACCOUNT
) -> PodIdentity | None:
    """As POD_NAME and POD_UID say, else files of the downward API, else the token that the pod's account has.

    None: this is no pod.
    """
    name = environ.get("POD_NAME") or _file(podinfo / "pod_name")
    uid = environ.get("POD_UID") or _file(podinfo / "pod_uid")
    if name and uid:
        return PodIdentity(name, uid)
    bound = _bound_pod(service_account / "token")
    if bound is None or (name and name != bound.name):
        return None
    return bound


def _bound_pod(token: Path) -> PodIdentity | None:
    """The pod a projected token is bound to. Who reads its own token has no reason to check the signature."""
    try:
        payload = line(token, "token").split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
    except (ClusterAccessError, IndexError, ValueError, msgspec.MsgspecError):
        return None
    pod = claims.kubernetes.pod
    return PodIdentity(pod.name, pod.uid) if pod.name and pod.uid else None


def _file(path: Path) -> str:
    try:
        return line(path, "name") if path.exists() else ""
    except ClusterAccessError:
        return ""
