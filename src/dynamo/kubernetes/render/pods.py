"""The pod template of a component."""

from __future__ import annotations

from typing import Any

from dynamo.kubernetes.graph import GraphComponent
from dynamo.kubernetes.graph.graph import MAIN
from dynamo.kubernetes.render.containers import main_container, sidecar_frontend
from dynamo.kubernetes.render.rights import account_name
from dynamo.kubernetes.render.target import (
    LABELS,
    MODEL_LABEL,
    RESTARTED_AT,
    SELECTOR_LABEL,
    RenderTarget,
    model_hash,
)

GRACE_SECONDS = 60
_SHARED_MEMORY = "8Gi"
_SHM, _CACHE = "shared-memory", "compilation-cache"

Object = dict[str, Any]


def pod_template(target: RenderTarget, component: GraphComponent) -> Object:
    given = component.pod_template
    spec = dict(given.spec)
    grace = spec.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
    main = main_container(target, component, grace)
    volumes, mounts = _volumes(component, spec, main)
    if mounts:
        main["volumeMounts"] = [*mounts, *(main.get("volumeMounts") or ())]
    if volumes:
        spec["volumes"] = [*volumes, *(spec.get("volumes") or ())]
    spec["containers"] = [
        main if each.get("name") == MAIN
        else sidecar_frontend(target, each, grace) if each.get("name") == component.frontend_sidecar
        else each
        for each in spec["containers"]
    ]  # fmt: skip
    spec.setdefault("securityContext", {"fsGroup": 1000})
    if account := account_name(target, component):
        spec.setdefault("serviceAccountName", account)
    if target.graph.spec.priority_class_name:
        spec.setdefault("priorityClassName", target.graph.spec.priority_class_name)
    return {"metadata": _metadata(target, component), "spec": spec}


def selector(target: RenderTarget, component: GraphComponent) -> dict[str, str]:
    return {SELECTOR_LABEL: target.name(component)}


def _metadata(target: RenderTarget, component: GraphComponent) -> Object:
    given, spec = component.pod_template.metadata, target.graph.spec
    labels = {
        **(spec.labels or {}),
        **(given.labels or {}),
        **target.labels(component),
        **selector(target, component),
        f"{LABELS}dynamo-namespace": target.dynamo_namespace(component),
        f"{LABELS}metrics-enabled": "true",
    }
    if component.model_ref:
        labels[MODEL_LABEL] = model_hash(component.model_ref.name)
    annotations = {**(spec.annotations or {}), **(given.annotations or {})}
    if restarted := target.restarted.get(component.name):
        annotations[RESTARTED_AT] = restarted
    return {"labels": labels, **({"annotations": annotations} if annotations else {})}


def _volumes(component: GraphComponent, spec: Object, main: Object) -> tuple[list[Object], list[Object]]:
    """Shared memory and the compilation cache, with where they are mounted."""
    volumes: list[Object] = []
    mounts: list[Object] = []
    mounted = {each.get("mountPath") for each in main.get("volumeMounts") or ()}
    there = {each.get("name") for each in spec.get("volumes") or ()}
    size = component.shared_memory_size
    if size is None and component.is_worker:
        size = _SHARED_MEMORY
    if size is not None and str(size) != "0" and "/dev/shm" not in mounted and _SHM not in there:
        volumes.append({"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}})
        mounts.append({"name": _SHM, "mountPath": "/dev/shm"})
    cache = component.compilation_cache
    if cache and cache.mount_path not in mounted and _CACHE not in there:
        volumes.append({"name": _CACHE, "persistentVolumeClaim": {"claimName": cache.pvc_name}})
        mounts.append({"name": _CACHE, "mountPath": cache.mount_path})
    return volumes, mounts
