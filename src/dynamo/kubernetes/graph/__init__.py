"""A DynamoGraphDeployment: the components of a deployment, as one object of Kubernetes or one file."""

from dynamo.kubernetes.graph.graph import Component, Graph, GraphError
from dynamo.kubernetes.graph.reading import GraphFile, is_graph, read_graph_file, read_graph_object

__all__ = ["Component", "Graph", "GraphError", "GraphFile", "is_graph", "read_graph_file", "read_graph_object"]
