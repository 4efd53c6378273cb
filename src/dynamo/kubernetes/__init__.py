"""A Kubernetes cluster: where it is, and the calls that are made to it."""
