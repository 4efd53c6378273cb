"""Workers as pods of a Kubernetes cluster, scaled by its API."""

from dynamo.planner.act.kubernetes.access import find_access
from dynamo.planner.act.kubernetes.actor import GraphActor, WorkloadActor, kubernetes_actor
from dynamo.planner.act.kubernetes.api import KubernetesApi
from dynamo.planner.act.kubernetes.cluster import ClusterAccess, ClusterAccessError

__all__ = [
    "ClusterAccess",
    "ClusterAccessError",
    "GraphActor",
    "KubernetesApi",
    "WorkloadActor",
    "find_access",
    "kubernetes_actor",
]
