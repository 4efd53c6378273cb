"""A graph on this machine: its containers as processes, for `dynamo serve`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynamo.kubernetes.graph import Graph, GraphComponent, is_graph, read_graph_file
from dynamo.kubernetes.graph.graph import WORKER_TYPES
from dynamo.kubernetes.render.containers import HTTP_PORT
from dynamo.process.supervisor.deployment import ComponentSpec, Deployment

_MODULE = re.compile(r"-m\s+dynamo\.(\w+)")
_REFERENCE = re.compile(r"\$\((\w+)\)")
_PYTHON = frozenset(("python", "python3"))
_DRAIN = 60.0


def holds_graph(path: Path) -> bool:
    """Whether the file is a DynamoGraphDeployment rather than our own form; what cannot be read is not."""
    import yaml

    try:
        return any(is_graph(each) for each in yaml.safe_load_all(path.expanduser().read_bytes()))
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return False


def read_local_graph(path: Path, environ: Mapping[str, str]) -> tuple[Deployment, list[str]]:
    """The deployment, and notes of what a cluster would do and this machine does not."""
    return local_deployment(read_graph_file(path).graph, environ)


def local_deployment(graph: Graph, environ: Mapping[str, str]) -> tuple[Deployment, list[str]]:
    notes = list(graph.notes)
    specs: list[ComponentSpec] = []
    for component in graph.spec.components:
        if component.type in ("planner", "epp"):
            notes.append(f"component '{component.name}' is left out: a {component.type} needs a cluster")
        elif component.nodes > 1:
            notes.append(f"component '{component.name}' is left out: it wants {component.nodes} nodes")
        else:
            specs.append(_spec(graph, component, environ, notes))
    specs.sort(key=lambda spec: 2 if spec.kind == "frontend" else 0)
    return Deployment(components=tuple(specs), drain_seconds=_drain(graph)), notes


def _spec(graph: Graph, component: GraphComponent, environ: Mapping[str, str], notes: list[str]) -> ComponentSpec:
    main = component.main
    if component.pod_template.spec.get("initContainers"):
        notes.append(f"component '{component.name}': its initContainers do not run here")
    env = {"DYN_NAMESPACE": graph.name}
    if component.type == "frontend":
        env["DYN_HTTP_PORT"] = environ.get("DYN_HTTP_PORT", str(HTTP_PORT))
    elif component.type in WORKER_TYPES:
        env["DYN_COMPONENT"] = component.type
    # Commands of images call `python3`: here, that of this program.
    env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environ.get("PATH", os.defpath)))
    for variable in [*(graph.spec.env or ()), *(main.get("env") or ())]:
        name, value = variable["name"], variable.get("value")
        if value is not None:
            env[name] = value
        elif name not in environ:
            notes.append(f"component '{component.name}': {name} comes from the cluster; set it here if it is needed")
    known = dict(environ)
    for name, value in env.items():  # one may refer to those before it
        env[name] = known[name] = _expanded(value, known)
    words = [*(main.get("command") or _default(component)), *(main.get("args") or ())]
    words = [_expanded(word, known) for word in words]
    if words[0] in _PYTHON:
        words[0] = sys.executable
    module = _MODULE.search(" ".join(words))
    return ComponentSpec(
        name=component.name, kind=module[1] if module else "command", words=tuple(words),
        replicas=component.count, env=env,
    )  # fmt: skip


def _default(component: GraphComponent) -> list[str]:
    if component.type == "frontend":
        return ["python3", "-m", "dynamo.frontend"]
    return ["/bin/sh", "-c"]


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes replaces it: what is not known stays."""
    return _REFERENCE.sub(lambda found: known.get(found[1], found[0]), text)


def _drain(graph: Graph) -> float:
    given: list[Any] = [
        each.pod_template.spec.get("terminationGracePeriodSeconds") or _DRAIN for each in graph.spec.components
    ]
    return float(max(given))
