"""From a graph to plain objects of Kubernetes, without a cluster: the operator, `dynamo render` and `dynamo deploy`."""

from dynamo.kubernetes.render.objects import render
from dynamo.kubernetes.render.target import RenderTarget

__all__ = ["RenderTarget", "render"]
