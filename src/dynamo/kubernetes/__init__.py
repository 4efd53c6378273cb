"""A client of Kubernetes' API: where the cluster is, calls of its objects, and watches that survive outages."""
