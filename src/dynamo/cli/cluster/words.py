"""The words of a command about a graph: its file, a namespace, and flags without a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dynamo.kubernetes.graph import GraphFile, read_graph_file
from dynamo.protocols.errors import StartError
from dynamo.runtime.process import fail
from dynamo.settings.arguments import CommandParser


class ClusterWords(Struct, frozen=True):
    file: Path
    found: GraphFile
    """What the file holds."""
    namespace: str | None
    flags: frozenset[str]


def graph_parser(command: str, about: str, flags: Mapping[str, str]) -> CommandParser:
    parser = CommandParser(command, about)
    parser.add_argument("file", metavar="FILE.yaml", help="the graph")
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help="where its objects go")
    for flag, purpose in flags.items():
        parser.add_argument(flag, dest="flags", action="append_const", const=flag, help=purpose)
    return parser


def read_words(parser: CommandParser, words: Sequence[str]) -> ClusterWords | None:
    """Read the words and the file that they name; without any, print the help and return None."""
    if not words:
        parser.print_help()
        return None
    asked = parser.parse_args(words)
    file = Path(asked.file)
    try:
        found = read_graph_file(file)
    except StartError as error:
        raise fail(str(error), code=2, error=error) from None
    return ClusterWords(file, found, asked.namespace, frozenset(asked.flags or ()))
