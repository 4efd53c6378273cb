"""v1alpha1 of a DynamoGraphDeployment, turned into v1beta1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dynamo.kubernetes.graph.problem import GraphError, converted

_TYPES = {"main": "frontend", "Frontend": "frontend"}
_CLAIM_MODE = "ReadWriteOnce"


class AlphaResources(Struct, frozen=True, forbid_unknown_fields=True):
    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    claims: list[Any] | None = None


class AlphaMount(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    mount_point: str | None = None
    use_as_compilation_cache: bool = False


class AlphaSharedMemory(Struct, frozen=True, forbid_unknown_fields=True):
    disabled: bool = False
    size: str | int | None = None


class AlphaMetadata(Struct, frozen=True, forbid_unknown_fields=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class AlphaAdapter(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = False


class AlphaSidecar(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    image: str
    args: list[str] | None = None
    env_from_secret: str | None = None
    envs: list[dict[str, Any]] | None = None


class AlphaService(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The fields of one service; what is the same in v1beta1 is checked there."""

    component_type: str | None = None
    sub_component_type: str | None = None
    dynamo_namespace: str | None = None
    replicas: int | None = None
    resources: AlphaResources = AlphaResources()
    envs: list[dict[str, Any]] | None = None
    env_from_secret: str | None = None
    liveness_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    volume_mounts: list[AlphaMount] | None = None
    shared_memory: AlphaSharedMemory | None = None
    extra_pod_metadata: AlphaMetadata = AlphaMetadata()
    extra_pod_spec: dict[str, Any] | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    ingress: dict[str, Any] | None = None
    autoscaling: dict[str, Any] | None = None
    multinode: dict[str, Any] | None = None
    model_ref: dict[str, Any] | None = None
    scaling_adapter: AlphaAdapter | None = None
    epp_config: dict[str, Any] | None = None
    frontend_sidecar: AlphaSidecar | None = None
    global_dynamo_namespace: bool = False
    service_name: str | None = None
    experimental: dict[str, Any] | None = None


class AlphaClaim(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    create: bool = False
    storage_class: str | None = None
    size: str | int | None = None
    volume_access_mode: str | None = None


class AlphaSpec(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    services: dict[str, dict[str, Any] | None]
    backend_framework: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    envs: list[dict[str, Any]] | None = None
    pvcs: list[AlphaClaim] | None = None
    restart: dict[str, Any] | None = None
    dynamo_graph: str | None = None


def from_alpha(spec: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The spec as v1beta1 has it, with the claims it asks for under `$claims`."""
    alpha = converted(spec, AlphaSpec, place)
    if not alpha.services:
        raise GraphError(f"{place}.services: must name at least one service")
    beta: dict[str, Any] = {
        "backendFramework": alpha.backend_framework,
        "annotations": alpha.annotations,
        "labels": alpha.labels,
        "env": alpha.envs,
        "restart": alpha.restart,
        "components": [
            _component(name, each or {}, f"{place}.services.{name}") for name, each in alpha.services.items()
        ],
    }  # fmt: skip
    if claims := [_claim(each) for each in alpha.pvcs or () if each.create]:
        beta["$claims"] = claims
    return {key: value for key, value in beta.items() if value is not None}


def _component(name: str, given: Mapping[str, Any], place: str) -> dict[str, Any]:
    service = converted(given, AlphaService, place)
    pod = dict(service.extra_pod_spec or {})
    main = dict(pod.pop("mainContainer", None) or {})
    if any(isinstance(each, Mapping) and each.get("name") == "main" for each in pod.get("containers") or ()):
        raise GraphError(f"{place}.extraPodSpec.containers: the container main is described by mainContainer")
    main["name"] = "main"
    _fill_main(main, service)
    volumes = [*(pod.get("volumes") or ())]
    cache = None
    for mount in service.volume_mounts or ():
        if mount.use_as_compilation_cache:
            cache = {"pvcName": mount.name, **({"mountPath": mount.mount_point} if mount.mount_point else {})}
            continue
        if not mount.mount_point:
            raise GraphError(f"{place}.volumeMounts: '{mount.name}' has no mountPoint")
        main["volumeMounts"] = [
            *(main.get("volumeMounts") or ()), {"name": mount.name, "mountPath": mount.mount_point}
        ]  # fmt: skip
        if all(each.get("name") != mount.name for each in volumes):
            volumes.append({"name": mount.name, "persistentVolumeClaim": {"claimName": mount.name}})
    containers = [main, *(pod.get("containers") or ())]
    if sidecar := service.frontend_sidecar:
        containers.append(_sidecar(sidecar))
    pod |= {"containers": containers, **({"volumes": volumes} if volumes else {})}
    metadata = {
        "labels": {**(service.labels or {}), **(service.extra_pod_metadata.labels or {})},
        "annotations": {**(service.annotations or {}), **(service.extra_pod_metadata.annotations or {})},
    }
    shared = service.shared_memory
    beta = {
        "name": name,
        "type": _type(name, service),
        "replicas": service.replicas,
        "podTemplate": {"metadata": metadata, "spec": pod},
        "multinode": service.multinode,
        "modelRef": service.model_ref,
        "eppConfig": service.epp_config,
        "scalingAdapter": {} if service.scaling_adapter and service.scaling_adapter.enabled else None,
        "sharedMemorySize": None if shared is None else "0" if shared.disabled else shared.size,
        "frontendSidecar": "sidecar-frontend" if service.frontend_sidecar else None,
        "compilationCache": cache,
        "globalDynamoNamespace": service.global_dynamo_namespace or None,
        "experimental": service.experimental,
    }
    return {key: value for key, value in beta.items() if value is not None}


def _type(name: str, service: AlphaService) -> str:
    """Where it is left out, the name says it."""
    kind = service.component_type or ("frontend" if name.lower() == "frontend" else "worker")
    kind = _TYPES.get(kind, kind)
    return service.sub_component_type or kind if kind == "worker" else kind


def _fill_main(main: dict[str, Any], service: AlphaService) -> None:
    """What v1alpha1 has beside the container, into the container; the container's own words win."""
    if service.envs:
        own = {each.get("name") for each in main.get("env") or ()}
        main["env"] = [*(each for each in service.envs if each.get("name") not in own), *(main.get("env") or ())]
    if service.env_from_secret:
        main["envFrom"] = [*(main.get("envFrom") or ()), {"secretRef": {"name": service.env_from_secret}}]
    for key, probe in (("livenessProbe", service.liveness_probe), ("readinessProbe", service.readiness_probe)):
        if probe:
            main.setdefault(key, probe)
    resources = {
        "requests": _quantities(service.resources.requests),
        "limits": _quantities(service.resources.limits),
        "claims": service.resources.claims,
    }
    resources = {key: value for key, value in resources.items() if value}
    if resources:
        main.setdefault("resources", resources)


def _quantities(given: Mapping[str, Any] | None) -> dict[str, str]:
    """`gpu` with its `gpuType`, and what `custom` holds, are resources of their own names in a pod."""
    found: dict[str, str] = {}
    for key, value in (given or {}).items():
        if key == "gpuType":
            continue
        if key == "custom":
            found |= {name: str(each) for name, each in (value or {}).items()}
        else:
            name = (given or {}).get("gpuType") or "nvidia.com/gpu" if key == "gpu" else key
            found[name] = str(value)
    return found


def _sidecar(sidecar: AlphaSidecar) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "sidecar-frontend", "image": sidecar.image}
    if sidecar.args:
        container["args"] = sidecar.args
    if sidecar.envs:
        container["env"] = sidecar.envs
    if sidecar.env_from_secret:
        container["envFrom"] = [{"secretRef": {"name": sidecar.env_from_secret}}]
    return container


def _claim(claim: AlphaClaim) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [claim.volume_access_mode or _CLAIM_MODE],
        "resources": {"requests": {"storage": str(claim.size or "10Gi")}},
    }
    if claim.storage_class:
        spec["storageClassName"] = claim.storage_class
    return {"name": claim.name, "spec": spec}
