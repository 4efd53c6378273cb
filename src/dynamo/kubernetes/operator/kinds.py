"""The kinds of objects that the operator and `dynamo deploy` deal with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.kubernetes.graph.reading import GROUP, KIND
from dynamo.kubernetes.resources import DEPLOYMENTS, GRAPH_ADAPTERS, PODS, STATEFUL_SETS, Resource

GRAPHS = Resource(GROUP, "v1beta1", "dynamographdeployments", KIND)
ADAPTERS = GRAPH_ADAPTERS
MODELS = Resource(GROUP, "v1alpha1", "dynamomodels", "DynamoModel")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("", "v1", "events", "Event")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)  # fmt: skip

_RBAC = "rbac.authorization.k8s.io"
APPLIED = {
    each.kind: each
    for each in (
        DEPLOYMENTS, STATEFUL_SETS, PODS, GRAPH_ADAPTERS, SECRETS, SERVICES, CLAIMS, BUDGETS, GRAPHS, MODELS,
        Resource("", "v1", "serviceaccounts", "ServiceAccount"),
        Resource("", "v1", "configmaps", "ConfigMap"),
        Resource(_RBAC, "v1", "roles", "Role"),
        Resource(_RBAC, "v1", "rolebindings", "RoleBinding"),
        Resource("batch", "v1", "jobs", "Job"),
    )
}  # fmt: skip
"""What can be applied, by kind."""

Object = dict[str, Any]


def name_of(found: Mapping[str, Any]) -> str:
    return str(found["metadata"]["name"])


def labels_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    return found["metadata"].get("labels") or {}
