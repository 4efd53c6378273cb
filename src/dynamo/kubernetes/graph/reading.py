"""Graphs from files and from the API: v1beta1 or v1alpha1, by which of `components` and `services` is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.kubernetes.graph.alpha import from_alpha
from dynamo.kubernetes.graph.graph import Graph, make_graph
from dynamo.kubernetes.graph.problem import GraphError
from dynamo.settings import nearest
from dynamo.settings.setting import one_of

GROUP = "nvidia.com"
KIND = "DynamoGraphDeployment"
VERSIONS = ("v1beta1", "v1alpha1")


class GraphFile(Struct, frozen=True):
    """A graph, and the other objects of its file: claims, ConfigMaps, Secrets."""

    graph: Graph
    companions: list[dict[str, Any]]


def is_graph(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == KIND


def read_graph_file(path: Path) -> GraphFile:
    graphs, companions = _documents(path)
    if len(graphs) != 1:
        raise GraphError(f"{path}: has {len(graphs)} objects of the kind {KIND}, and must have one")
    return GraphFile(read_graph_object(graphs[0], f"{path}: "), companions)


def read_graph_files(path: Path) -> list[Graph]:
    """All graphs of a file."""
    return [read_graph_object(each, f"{path}: ") for each in _documents(path)[0]]


def _documents(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    import yaml

    try:
        documents = list(yaml.safe_load_all(path.expanduser().read_bytes()))
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise GraphError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    graphs = [each for each in documents if is_graph(each)]
    return graphs, [each for each in documents if isinstance(each, dict) and not is_graph(each)]


def read_graph_object(document: Mapping[str, Any], prefix: str = "") -> Graph:
    """The object as a file or the API server has it. `prefix` begins messages."""
    for key in document:
        if key not in ("apiVersion", "kind", "metadata", "spec", "status"):
            raise GraphError(
                f"{prefix}unknown field '{key}'{nearest(str(key), ('apiVersion', 'kind', 'metadata', 'spec'))}"
            )
    version = str(document.get("apiVersion"))
    group, _, number = version.partition("/")
    if group != GROUP or number not in VERSIONS:
        known = one_of([f"{GROUP}/{each}" for each in VERSIONS])
        raise GraphError(f"{prefix}apiVersion: must be {known}, not '{version}'")
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        raise GraphError(f"{prefix}metadata.name: is missing")
    if not isinstance(spec, Mapping):
        raise GraphError(f"{prefix}spec: must be a mapping with components")
    if "services" in spec:
        if "components" in spec:
            raise GraphError(f"{prefix}spec: has both components and services: give one")
        spec = from_alpha(spec, f"{prefix}spec")
    elif number == "v1alpha1" and "components" not in spec:
        raise GraphError(f"{prefix}spec.services: must name at least one service")
    return make_graph(
        spec, metadata["name"], metadata.get("namespace"), metadata.get("annotations") or {},
        metadata.get("uid") or "", prefix,
    )  # fmt: skip
