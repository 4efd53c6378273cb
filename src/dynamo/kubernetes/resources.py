"""Kinds of objects, by the names that paths and bodies of the API use."""

from __future__ import annotations

from msgspec import Struct


class Resource(Struct, frozen=True):
    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Without a name, that of the whole collection."""
        root = ("apis", self.group) if self.group else ("api",)
        where = ("namespaces", namespace) if self.namespaced and namespace else ()
        return "/".join(filter(None, (*root, self.version, *where, self.plural, name, subresource)))


PODS = Resource("", "v1", "pods", "Pod")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
WORKER_METADATA = Resource("nvidia.com", "v1alpha1", "dynamoworkermetadatas", "DynamoWorkerMetadata")
GRAPH_ADAPTERS = Resource(
    "nvidia.com", "v1beta1", "dynamographdeploymentscalingadapters", "DynamoGraphDeploymentScalingAdapter"
)  # fmt: skip
