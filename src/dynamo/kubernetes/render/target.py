"""Names and labels of what a graph is made into."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.kubernetes.graph import Graph, GraphComponent, GraphError

LABELS = "nvidia.com/"
GRAPH_LABEL = f"{LABELS}dynamo-graph-deployment-name"
COMPONENT_LABEL = f"{LABELS}dynamo-component"
HASH_LABEL = f"{LABELS}dynamo-worker-hash"
SELECTOR_LABEL = f"{LABELS}selector"
MODEL_LABEL = f"{LABELS}dynamo-base-model-hash"
MANAGED_BY = "app.kubernetes.io/managed-by"
RESTARTED_AT = f"{LABELS}restartAt"
_LONGEST_NAME = 63
_HASHED_WITHOUT = frozenset(("replicas", "scalingAdapter", "minAvailable"))


class RenderTarget(Struct, frozen=True, kw_only=True):
    """Where a graph is rendered to, and what is not in its own object."""

    graph: Graph
    namespace: str
    generation: str = ""
    """The one that workers belong to; empty where Deployments are updated in place."""
    manager: str = "dynamo"
    owner: Mapping[str, Any] | None = None
    replicas: Mapping[str, int] = {}
    """By component, where somebody else than the graph decides."""
    restarted: Mapping[str, str] = {}
    """By component, the id of the last restart that was asked for."""

    @property
    def token_secret(self) -> str:
        return f"{self.graph.name}-plane"

    def count(self, component: GraphComponent) -> int:
        return self.replicas.get(component.name, component.count)

    def generation_of(self, component: GraphComponent) -> str:
        return self.generation if component.is_worker else ""

    def name(self, component: GraphComponent) -> str:
        """That of the component's workload and of its Service."""
        parts = [self.graph.name.replace(".", "-"), component.name.lower(), self.generation_of(component)]
        name = "-".join(filter(None, parts))
        longest = _LONGEST_NAME - (4 if component.nodes > 1 else 0)
        if len(name) > longest:
            raise GraphError(f"component '{component.name}': its objects would be called '{name}', which is too long"
                             f" (over {longest} characters); shorten its name or that of the graph")  # fmt: skip
        return name

    def dynamo_namespace(self, component: GraphComponent) -> str:
        """Workers of another generation are of another namespace: prefill and decode of both do not mix.

        No name of Kubernetes has an underscore, so no prefix of one graph is that of another.
        """
        if component.global_dynamo_namespace:
            return "dynamo"
        base = f"{self.namespace}-{self.graph.name}".replace(".", "-")
        generation = self.generation_of(component)
        return f"{base}_{generation}" if generation else base

    @property
    def namespace_prefix(self) -> str:
        """What the namespaces of all generations begin with; empty where there is but one."""
        return f"{self.namespace}-{self.graph.name}_".replace(".", "-") if self.generation else ""

    def labels(self, component: GraphComponent | None = None) -> dict[str, str]:
        """Those that every object of the graph has, or of one component."""
        own = {MANAGED_BY: self.manager, GRAPH_LABEL: self.graph.name}
        if component is None:
            return own
        own |= {COMPONENT_LABEL: component.name, f"{LABELS}dynamo-component-type": component.type or "other"}
        if generation := self.generation_of(component):
            own[HASH_LABEL] = generation
        return own

    def metadata(self, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "namespace": self.namespace}
        spec = self.graph.spec
        found["labels"] = {**(spec.labels or {}), **labels}
        if spec.annotations:
            found["annotations"] = dict(spec.annotations)
        if self.owner:
            found["ownerReferences"] = [dict(self.owner)]
        return found


def worker_generation(graph: Graph) -> str:
    """Another one exactly when the workers' pods are to be others. It says nothing of how they are rendered, so that a
    newer operator replaces no workers.
    """
    workers = [
        {key: value for key, value in msgspec.to_builtins(each).items() if key not in _HASHED_WITHOUT}
        for each in graph.workers
    ]
    around = {"env": graph.spec.env, "annotations": graph.spec.annotations, "labels": graph.spec.labels}
    return _hash8([workers, {key: value for key, value in around.items() if value}])


def model_hash(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()[:8]


def _hash8(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:8]
