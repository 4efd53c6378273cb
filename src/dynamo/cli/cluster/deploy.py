"""`dynamo deploy FILE.yaml`: a graph in a cluster, followed until it serves."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct, structs

from dynamo.cli.cluster.render import plain_objects
from dynamo.cli.cluster.words import ClusterWords, graph_parser, read_words
from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.errors import Conflict, KubernetesError, ObjectNotFound, UnknownResource
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.kubernetes.graph import GraphError, GraphFile
from dynamo.kubernetes.operator.kinds import APPLIED, GRAPHS, SECRETS, labels_of, name_of
from dynamo.kubernetes.operator.progress import progress_of
from dynamo.kubernetes.operator.status import ready_condition
from dynamo.kubernetes.operator.stuck import why_no_pods, why_stuck
from dynamo.kubernetes.render.target import COMPONENT_LABEL, GRAPH_LABEL
from dynamo.kubernetes.resources import DEPLOYMENTS, PODS, STATEFUL_SETS
from dynamo.protocols.errors import StartError
from dynamo.runtime.process import fail

if TYPE_CHECKING:
    from dynamo.kubernetes.api import KubernetesApi

ABOUT = """\
Apply a DynamoGraphDeployment, and whatever else the file holds, to the cluster of KUBECONFIG, and follow it until it
serves: a line for each component that gets further, and the reason of whatever is stuck. Ctrl-C ends the following and
changes nothing in the cluster.

Where the cluster has no operator, and with --plain, the objects that `dynamo render` prints are applied themselves.
NAMESPACE is that of the file, else that of the kubeconfig."""
FLAGS = {"--plain": "apply plain objects, without the operator", "--no-wait": "apply only"}
MANAGER = "dynamo-deploy"
_EVERY = 0.5
_UNSEEN = 15.0
"""Seconds after which a graph that no operator has looked at is called so."""

Object = dict[str, Any]

parser = partial(graph_parser, "dynamo deploy", ABOUT, FLAGS)


class _Objects(Struct, frozen=True):
    """What the cluster holds of one graph."""

    graph: Object | None
    workloads: list[Object]
    pods: list[Object]


def main(words: Sequence[str], environ: Mapping[str, str]) -> None:
    asked = read_words(parser(), words)
    if asked is None:
        return
    try:
        asyncio.run(_deploy(asked, environ))
    except (StartError, ClusterAccessError, KubernetesError) as error:
        raise fail(str(error), error=error) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


async def _deploy(asked: ClusterWords, environ: Mapping[str, str]) -> None:
    found = asked.found
    for note in found.graph.notes:
        print(f"note: {note}", flush=True)
    from dynamo.kubernetes.api import KubernetesApi  # not for --help

    async with KubernetesApi(find_access(environ)) as api:
        namespace = asked.namespace or found.graph.namespace or api.namespace
        api.namespace = namespace
        plain = "--plain" in asked.flags or not await _knows_graphs(api)
        if plain:
            await _apply_plain(api, found, namespace)
        else:
            await _apply_graph(api, asked)
        if "--no-wait" not in asked.flags:
            await _follow(api, found, plain)


async def _knows_graphs(api: KubernetesApi) -> bool:
    try:
        await api.list(GRAPHS)
    except UnknownResource:
        print(
            "the cluster has no operator (it does not know DynamoGraphDeployment): applying plain objects", flush=True
        )
        return False
    return True


async def _apply_plain(api: KubernetesApi, found: GraphFile, namespace: str) -> None:
    """The Secret stays where it is there: pods that run have its token."""
    name = f"{found.graph.name}-plane"
    try:
        await api.get(SECRETS, name, Raw)
        token = None
    except ObjectNotFound:
        token = secrets.token_hex(32)
    objects = plain_objects(found, namespace, token)
    for each in objects:
        await _apply(api, each)
    print(f"applied {len(objects)} objects to the namespace {namespace}", flush=True)


async def _apply_graph(api: KubernetesApi, asked: ClusterWords) -> None:
    import yaml

    documents = yaml.safe_load_all(asked.file.expanduser().read_bytes())
    for each in documents:
        if isinstance(each, dict):
            metadata = {**each["metadata"], "namespace": api.namespace}
            kind = GRAPHS if each.get("kind") == GRAPHS.kind else None
            await _apply(api, {**each, "metadata": metadata}, versioned=kind is not None)
    print(f"applied the graph {asked.found.graph.name} to the namespace {api.namespace}", flush=True)


async def _apply(api: KubernetesApi, each: Object, *, versioned: bool = False) -> None:
    kind = str(each.get("kind"))
    if kind not in APPLIED:
        raise GraphError(f"the kind {kind} is not applied by dynamo deploy; apply it with kubectl, and take it out")
    resource = APPLIED[kind]
    if versioned:
        resource = structs.replace(resource, version=str(each["apiVersion"]).rpartition("/")[2])
    try:
        await api.apply(resource, name_of(each), each, manager=MANAGER, namespace=api.namespace)
    except Conflict as error:
        raise GraphError(f"{kind} {name_of(each)}: {error}") from error


async def _follow(api: KubernetesApi, found: GraphFile, plain: bool) -> None:
    """Until every component serves; a line when something is other than before."""
    begun, told = time.monotonic(), dict[str, str]()
    while True:
        seen = await _read(api, found.graph.name, plain)
        lines, ready = _lines(found, seen, plain, time.monotonic() - begun)
        for name, line in lines.items():
            if told.get(name) != line:
                print(f"{time.monotonic() - begun:6.1f} s  {line}", flush=True)
                told[name] = line
        if ready:
            print(f"the graph {found.graph.name} is ready after {time.monotonic() - begun:.1f} s", flush=True)
            return
        await asyncio.sleep(_EVERY)


async def _read(api: KubernetesApi, name: str, plain: bool) -> _Objects:
    import msgspec

    async def listed(resource: Any) -> list[Object]:
        listing = await api.list(resource, labels=f"{GRAPH_LABEL}={name}")
        return [{**msgspec.json.decode(raw), "kind": resource.kind} for raw in listing.items]

    graph: Object | None = None if plain else await api.get(GRAPHS, name, dict)
    workloads = [*await listed(DEPLOYMENTS), *await listed(STATEFUL_SETS)]
    return _Objects(graph, workloads, await listed(PODS))


def _lines(found: GraphFile, seen: _Objects, plain: bool, elapsed: float) -> tuple[dict[str, str], bool]:
    """A line for each component and one for the graph, and whether all of it serves."""
    if not plain:
        return _graph_lines(seen.graph or {}, elapsed)
    lines: dict[str, str] = {}
    ready = True
    for component in found.graph.spec.components:
        workloads = [each for each in seen.workloads if labels_of(each).get(COMPONENT_LABEL) == component.name]
        pods = [each for each in seen.pods if labels_of(each).get(COMPONENT_LABEL) == component.name]
        progress = progress_of(workloads)
        why = next((told for each in workloads if (told := why_no_pods(each))), "") or why_stuck(pods)
        lines[component.name] = (
            f"{component.name}: {progress.ready} of {component.count} ready{f': {why}' if why else ''}"
        )
        ready = ready and progress.is_complete and progress.wanted == component.count
    return lines, ready


def _graph_lines(graph: Object, elapsed: float) -> tuple[dict[str, str], bool]:
    """From what the operator says of it."""
    status = graph.get("status") or {}
    generation = graph.get("metadata", {}).get("generation", 1)
    if status.get("observedGeneration", 0) < generation:
        unseen = "no operator has looked at it; is one running (python -m dynamo.operator)? --plain needs none"
        return ({"": unseen} if elapsed > _UNSEEN else {}), False
    condition = ready_condition(status)
    if condition.get("reason") in ("invalid_spec", "refused"):
        raise GraphError(f"{condition['reason'].replace('_', ' ')}: {condition['message']}")
    ready = condition.get("status") == "True"
    return {str(at): line for at, line in enumerate(condition.get("message", "").split("; "))}, ready
