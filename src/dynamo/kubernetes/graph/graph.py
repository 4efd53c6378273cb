"""The spec of a DynamoGraphDeployment, as v1beta1 has it; v1alpha1 is turned into this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from dynamo.kubernetes.graph.pod_fields import check_pod, check_variable
from dynamo.kubernetes.graph.problem import GraphError, converted
from dynamo.settings import nearest
from dynamo.settings.setting import one_of

__all__ = ["Graph", "GraphComponent", "GraphError", "GraphSpec", "make_graph"]

Replicas = Annotated[int, Meta(ge=0, le=10_000)]
ComponentType = Literal["frontend", "worker", "prefill", "decode", "planner", "epp"]
TYPES = ("frontend", "worker", "prefill", "decode", "planner", "epp")
WORKER_TYPES = frozenset(("worker", "prefill", "decode"))
MAIN = "main"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?([KMGTPE]i?|k|m)?")


class TemplateMetadata(Struct, frozen=True, forbid_unknown_fields=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    name: str | None = None


class PodTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: dict[str, Any] = {}


class Multinode(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    node_count: Annotated[int, Meta(ge=1, le=1024)] = 2


class ModelReference(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    revision: str | None = None


class CompilationCache(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    pvc_name: str
    mount_path: str = "/root/.cache/vllm"


class RestartStrategy(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["Sequential", "Parallel"] = "Sequential"
    order: list[str] | None = None


class Restart(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    strategy: RestartStrategy = RestartStrategy()


class GraphComponent(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What runs in one kind of pod."""

    name: str
    type: str = ""
    """Empty for a program that is none of them: it gets a name and variables, and no probes."""
    replicas: Replicas | None = None
    pod_template: PodTemplate = PodTemplate()
    runtime_version_override: str | None = None
    global_dynamo_namespace: bool = False
    min_available: int | None = None
    multinode: Multinode | None = None
    shared_memory_size: str | int | None = None
    model_ref: ModelReference | None = None
    scaling_adapter: dict[str, Any] | None = None
    frontend_sidecar: str | None = None
    compilation_cache: CompilationCache | None = None
    epp_config: dict[str, Any] | None = None
    topology_constraint: dict[str, Any] | None = None
    experimental: dict[str, Any] | None = None

    @property
    def is_worker(self) -> bool:
        return self.type in WORKER_TYPES

    @property
    def count(self) -> int:
        return 1 if self.replicas is None else self.replicas

    @property
    def nodes(self) -> int:
        return self.multinode.node_count if self.multinode else 1

    @property
    def main(self) -> Mapping[str, Any]:
        """The container that runs the component."""
        return next(each for each in self.pod_template.spec["containers"] if each.get("name") == MAIN)


class GraphSpec(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    components: list[GraphComponent]
    backend_framework: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    env: list[dict[str, Any]] | None = None
    priority_class_name: str | None = None
    restart: Restart | None = None
    topology_constraint: dict[str, Any] | None = None
    provider_override: dict[str, Any] | None = None
    experimental: dict[str, Any] | None = None
    paused: bool = False
    """The operator leaves the workers as they are. ai-dynamo has no such field."""
    claims: list[dict[str, Any]] = field(default_factory=list, name="$claims")
    """PersistentVolumeClaims that v1alpha1 asks for."""


class Graph(Struct, frozen=True, kw_only=True):
    """One deployment. `notes` say which fields have no effect here."""

    name: str
    namespace: str | None
    spec: GraphSpec
    annotations: Mapping[str, str] = {}
    uid: str = ""
    notes: tuple[str, ...] = ()

    @property
    def workers(self) -> list[GraphComponent]:
        return [each for each in self.spec.components if each.is_worker]

    def component(self, name: str) -> GraphComponent:
        return next(each for each in self.spec.components if each.name == name)


_NO_EFFECT = {
    "topologyConstraint": "placing by topology needs Grove",
    "providerOverride": "it configures Grove",
    "minAvailable": "it is for gangs of Grove",
    "runtimeVersionOverride": "one version reads all of its own images",
}
_REFUSED = {
    "gpuMemoryService": "there is no GPU memory service here; remove it, and --load-format gms from the command",
    "failover": "shadow engines are not supported; use replicas",
}


def make_graph(
    spec: Mapping[str, Any], name: str, namespace: str | None, annotations: Mapping[str, str], uid: str, prefix: str
) -> Graph:
    """Checked, from the spec of v1beta1; messages begin with `prefix`."""
    if not _OBJECT_NAME.fullmatch(name):
        raise GraphError(f"{prefix}metadata.name: '{name}' must be lower-case letters, digits, '-' and '.'")
    place = f"{prefix}spec"
    if not spec.get("components"):
        raise GraphError(f"{place}.components: must name at least one component")
    _check_types(spec["components"], f"{place}.components")
    checked = converted(spec, GraphSpec, place)
    notes = [*_notes(spec, place)]
    for at, variable in enumerate(checked.env or ()):
        check_variable(variable, f"{place}.env[{at}]")
    seen: dict[str, str] = {}
    for at, (component, raw) in enumerate(zip(checked.components, spec["components"], strict=True)):
        where = f"{place}.components[{at}]"
        _check_component(component, where)
        if other := seen.get(component.name.lower()):
            raise GraphError(f"{where}.name: '{component.name}' is also the name of '{other}'; names must differ")
        seen[component.name.lower()] = component.name
        notes += _notes(raw, where)
    if sum(each.type == "epp" for each in checked.components) > 1:
        raise GraphError(f"{place}.components: at most one may have the type epp")
    _check_restart(checked, place)
    return Graph(
        name=name, namespace=namespace, spec=checked, annotations=dict(annotations), uid=uid, notes=tuple(notes)
    )


def _check_types(components: Any, place: str) -> None:
    """Before the rest, so that a wrong type is named as such."""
    if not isinstance(components, list):
        raise GraphError(f"{place}: must be a list")
    for at, each in enumerate(components):
        if not isinstance(each, Mapping):
            raise GraphError(f"{place}[{at}]: must be a mapping with a name and a type")
        kind = each.get("type")
        if kind is not None and kind not in TYPES:
            hint = nearest(str(kind), TYPES) or f"; it must be {one_of(TYPES)}"
            raise GraphError(f"{place}[{at}].type: no component has the type '{kind}'{hint}")


def _check_component(component: GraphComponent, where: str) -> None:
    if not _NAME.fullmatch(component.name) or len(component.name) > 63:
        raise GraphError(f"{where}.name: '{component.name}' must be at most 63 letters, digits and '-'")
    pod = component.pod_template.spec
    place = f"{where}.podTemplate.spec"
    check_pod(pod, place)
    names = [each.get("name") for each in pod.get("containers") or ()]
    if MAIN not in names:
        raise GraphError(
            f"{place}.containers: one must be called 'main'; there is {', '.join(map(str, names)) or 'none'}"
        )
    if not component.main.get("image"):
        raise GraphError(f"{place}.containers[{names.index(MAIN)}].image: is missing")
    size = component.shared_memory_size
    if size is not None and not _QUANTITY.fullmatch(str(size)):
        raise GraphError(f"{where}.sharedMemorySize: '{size}' is no quantity, as 8Gi is")
    if component.nodes > 1 and not component.is_worker:
        raise GraphError(f"{where}.multinode: only workers use several nodes, not the type {component.type}")
    if component.type == "epp" and component.count != 1:
        raise GraphError(f"{where}.replicas: a component of type epp has 1, not {component.count}")
    if component.frontend_sidecar and component.frontend_sidecar not in names:
        raise GraphError(f"{where}.frontendSidecar: podTemplate has no container '{component.frontend_sidecar}'")
    for key, why in _REFUSED.items():
        if key in (component.experimental or {}):
            raise GraphError(f"{where}.experimental.{key}: {why}")


def _check_restart(spec: GraphSpec, place: str) -> None:
    order = spec.restart.strategy.order if spec.restart else None
    for at, name in enumerate(order or ()):
        names = [each.name for each in spec.components]
        if name not in names:
            raise GraphError(f"{place}.restart.strategy.order[{at}]: no component is called '{name}'")


def _notes(raw: Mapping[str, Any], where: str) -> list[str]:
    found = [f"{where}.{key}: has no effect: {why}" for key, why in _NO_EFFECT.items() if raw.get(key) is not None]
    experimental = raw.get("experimental")
    if isinstance(experimental, Mapping):
        found += [f"{where}.experimental.{key}: has no effect" for key in experimental if key not in _REFUSED]
    return found
