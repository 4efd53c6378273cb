"""Workers as pods of a Kubernetes cluster, scaled by its API."""

from dynamo.planner.act.kubernetes.access import ClusterAccess, ClusterAccessError
from dynamo.planner.act.kubernetes.actor import GraphActor, WorkloadActor, kubernetes_actor
from dynamo.planner.act.kubernetes.api import KubernetesApi

__all__ = ["ClusterAccess", "ClusterAccessError", "GraphActor", "KubernetesApi", "WorkloadActor", "kubernetes_actor"]
