"""`python -m dynamo.mocker`: the command of a worker, for several in one process."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.engines.mocker import MockerArgs
from dynamo.settings.arguments import FlagParser
from dynamo.worker.main import flag_parser
from dynamo.worker.main import main as serve

COMMAND = "python -m dynamo.mocker"


def parser() -> FlagParser:
    return flag_parser(COMMAND, MockerArgs)


def main(argv: Sequence[str] | None = None) -> None:
    serve("mocker", argv, COMMAND, MockerArgs)


if __name__ == "__main__":
    main()
