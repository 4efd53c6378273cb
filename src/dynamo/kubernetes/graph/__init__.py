"""A DynamoGraphDeployment: the components of a deployment, as one object of Kubernetes or one file."""

from dynamo.kubernetes.graph.graph import Graph, GraphComponent, GraphError
from dynamo.kubernetes.graph.reading import GraphFile, is_graph, read_graph_file, read_graph_object

__all__ = ["Graph", "GraphComponent", "GraphError", "GraphFile", "is_graph", "read_graph_file", "read_graph_object"]
