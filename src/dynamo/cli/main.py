"""The commands `dynamo-run` and `dynamo`. Heavy rooms are imported only when something will run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from dynamo import __version__
from dynamo.cli.commands import BY_NAME, OTHER_NAMES, usage
from dynamo.cli.run.grammar import Command, UsageError, parse
from dynamo.process.pipes import until_reader_leaves
from dynamo.settings import nearest


def main(words: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    try:
        command = parse(words, terminal=sys.stdin is not None and sys.stdin.isatty())
    except UsageError as error:
        raise _usage_error(str(error)) from None
    if command.show:
        with until_reader_leaves():
            _show(command)
        return
    _fill_standard_descriptors()
    try:
        from dynamo.cli.run.launch import launch

        launch(command, os.environ)
    except KeyboardInterrupt:  # before the event loop handles signals
        raise SystemExit(130) from None


def run(words: Sequence[str], _environ: Mapping[str, str]) -> None:
    main(words)


def dynamo() -> None:
    """Dispatch to the commands of `dynamo.cli.commands`."""
    words = sys.argv[1:]
    match words:
        case [name, *rest] if name in BY_NAME:
            if name != "run":
                _fill_standard_descriptors()
            with nullcontext() if name == "run" else until_reader_leaves():
                raise SystemExit(BY_NAME[name].run(rest, os.environ))
        case ["--flags", name] if name in BY_NAME:  # asked by the completions
            print(*BY_NAME[name].flags)
        case ["--completion", *rest]:
            main(["--completion", *rest])
        case ["--version"]:
            print(f"dynamo {__version__}")
        case [] | ["-h" | "--help" | "help"]:
            with until_reader_leaves():
                print(usage(), end="")
        case ["help", name] if name in BY_NAME:
            with until_reader_leaves():
                raise SystemExit(BY_NAME[name].run(["--help"], os.environ))
        case [word, *_]:
            meant = OTHER_NAMES.get(word)
            known = (*BY_NAME, "--version", "--help", "--completion")
            hint = f"; did you mean '{meant}'?" if meant else nearest(word, known)
            raise _usage_error(f"unknown command 'dynamo {word}'{hint or '; see dynamo --help'}")


def _fill_standard_descriptors() -> None:
    """Open whichever of 0, 1 and 2 is closed: a socket with such a number breaks the event loop."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _usage_error(message: str) -> SystemExit:
    print(f"error: {message}", file=sys.stderr)
    return SystemExit(2)


def _show(command: Command) -> None:
    if command.show == "version":
        print(f"dynamo-run {__version__}")
    elif command.show == "completion":
        from dynamo.cli.run.completion import script

        print(script(command.shell), end="")
    else:
        from dynamo.cli.run.help import help_text

        print(help_text(), end="")


if __name__ == "__main__":
    main()
