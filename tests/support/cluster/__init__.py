"""A Kubernetes cluster on this machine: a real control plane, and nodes that run the commands of pods as processes."""
