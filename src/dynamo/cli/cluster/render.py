"""`dynamo render FILE.yaml`: the plain objects of a graph, for those who want no operator."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dynamo.cli.cluster.words import graph_parser, read_words
from dynamo.kubernetes.graph import GraphFile
from dynamo.kubernetes.render import RenderTarget, render
from dynamo.kubernetes.render.objects import plane_secret
from dynamo.protocols.errors import StartError
from dynamo.runtime.process import fail

ABOUT = """\
Print the plain objects of a DynamoGraphDeployment: Deployments or StatefulSets, Services, service accounts with their
roles, budgets for disruptions, and what else the file holds. No operator is needed to run them:

  dynamo render FILE.yaml -n serving | kubectl apply -f -

NAMESPACE is that of the file, else `default`. The Secret with which the processes know each other has a new token each
time; --no-secret leaves it out, for when it is there already."""
FLAGS = {"--no-secret": "leave out the Secret"}

Object = dict[str, Any]

parser = partial(graph_parser, "dynamo render", ABOUT, FLAGS)


def main(words: Sequence[str], environ: Mapping[str, str]) -> None:
    import yaml

    asked = read_words(parser(), words)
    if asked is None:
        return
    try:
        objects = plain_objects(asked.found, asked.namespace, None if asked.flags else secrets.token_hex(32))
    except StartError as error:
        raise fail(str(error), code=2, error=error) from None
    for note in asked.found.graph.notes:
        print(f"note: {note}", file=sys.stderr)
    print("---\n".join(yaml.dump(each, Dumper=_dumper(), sort_keys=False, width=120) for each in objects), end="")


def plain_objects(found: GraphFile, namespace: str | None, token: str | None) -> list[Object]:
    """With what else the file holds before the graph's own, and the Secret if there is a token for it."""
    target = RenderTarget(graph=found.graph, namespace=namespace or found.graph.namespace or "default")
    companions = [_placed(each, target.namespace) for each in found.companions]
    secret = [plane_secret(target, token)] if token else []
    return [*companions, *secret, *render(target)]


def _placed(companion: Object, namespace: str) -> Object:
    metadata = companion.get("metadata") or {}
    return {**companion, "metadata": {"namespace": namespace, **metadata}}


def _dumper() -> Any:
    """Without the anchors by which YAML refers to what it has said before."""
    import yaml

    return type("PlainDumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
