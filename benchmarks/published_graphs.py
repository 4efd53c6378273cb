"""Reads all DynamoGraphDeployments below a folder, renders them, and says which are refused and why.

`python benchmarks/published_graphs.py FOLDER…`. Patches of Kustomize are fragments: they are counted apart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dynamo.kubernetes.graph import GraphError, is_graph, read_graph_object
from dynamo.kubernetes.render import RenderTarget, render


def documents(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted(folder.rglob("*.y*ml")):
        try:
            yield from ((file, each) for each in yaml.safe_load_all(file.read_bytes()) if is_graph(each))
        except yaml.YAMLError as error:
            print(f"{file}: is not YAML: {' '.join(str(error).split())}")


def main(folders: list[str]) -> None:
    accepted, objects, fragments, refused = 0, 0, 0, 0
    for folder in folders:
        for file, document in documents(Path(folder)):
            try:
                graph = read_graph_object(document, f"{file.relative_to(folder)}: ")
                objects += len(render(RenderTarget(graph=graph, namespace="default")))
                accepted += 1
            except GraphError as error:
                if "patch" in file.name:
                    fragments += 1
                else:
                    refused += 1
                    print(error)
    print(f"{accepted} accepted ({objects} objects), {refused} refused, {fragments} fragments refused")


if __name__ == "__main__":
    main(sys.argv[1:])
