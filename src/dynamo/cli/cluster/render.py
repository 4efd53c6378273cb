"""`dynamo render FILE.yaml`: the plain objects of a graph, for those who want no operator."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.kubernetes.graph import GraphFile, read_graph_file
from dynamo.kubernetes.render import RenderTarget, render
from dynamo.kubernetes.render.objects import plane_secret
from dynamo.protocols.errors import StartError
from dynamo.runtime.process import fail
from dynamo.settings.arguments import CommandParser

ABOUT = """\
Print the plain objects of a DynamoGraphDeployment: Deployments or StatefulSets, Services, service accounts with their
roles, budgets for disruptions, and what else the file holds. No operator is needed to run them:

  dynamo render FILE.yaml -n serving | kubectl apply -f -

NAMESPACE is that of the file, else `default`. The Secret with which the processes know each other has a new token each
time; --no-secret leaves it out, for when it is there already."""
FLAGS = {"--no-secret": "leave out the Secret"}

Object = dict[str, Any]


class ClusterWords(Struct, frozen=True):
    """The words of a command about a graph."""

    file: Path
    namespace: str | None = None
    flags: frozenset[str] = frozenset()


def graph_parser(command: str, about: str, flags: Mapping[str, str]) -> CommandParser:
    """For FILE, -n NAMESPACE and flags without a value."""
    parser = CommandParser(command, about)
    parser.add_argument("file", metavar="FILE.yaml", help="the graph")
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help="where its objects go")
    for flag, purpose in flags.items():
        parser.add_argument(flag, dest="flags", action="append_const", const=flag, help=purpose)
    return parser


def read_words(parser: CommandParser, words: Sequence[str]) -> ClusterWords:
    asked = parser.parse_args(words)
    return ClusterWords(Path(asked.file), asked.namespace, frozenset(asked.flags or ()))


def parser() -> CommandParser:
    return graph_parser("dynamo render", ABOUT, FLAGS)


def main(words: Sequence[str], environ: Mapping[str, str]) -> None:
    import yaml

    if not words:
        parser().print_help()
        return
    asked = read_words(parser(), words)
    try:
        found = read_graph_file(asked.file)
        objects = plain_objects(found, asked.namespace, None if asked.flags else secrets.token_hex(32))
    except StartError as error:
        raise fail(str(error), code=2, error=error) from None
    for note in found.graph.notes:
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
