"""The commands `dynamo-run` and `dynamo`. Heavy rooms are imported only when something will run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from dynamo import __version__
from dynamo.cli.run.grammar import Command, UsageError, parse
from dynamo.settings import nearest

_USAGE = """\
usage: dynamo run …              chat, serve, batch or work in one process: see dynamo run --help
       dynamo serve FILE.yaml    several processes on this machine: see dynamo serve --help
       dynamo deploy FILE.yaml   the same in a Kubernetes cluster: see dynamo deploy --help
       dynamo render FILE.yaml   what that makes in a cluster, as plain objects: see dynamo render --help
       dynamo top [URL]          watch a server's workers, requests and routing decisions
       dynamo plan [TRACE] …     how many workers a traffic needs: see dynamo plan --help
       dynamo rules TRACE …      which router rule is best on a traffic: see dynamo rules --help
       dynamo profile URL        measure the engine behind a server, for simulations: see dynamo profile --help
       dynamo inspect [PROCESS]  look inside a running process: see dynamo inspect --help
       dynamo --version
"""
_COMMANDS = ("run", "serve", "deploy", "render", "top", "inspect", "plan", "rules", "profile", "--version", "--help")


def main(words: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    try:
        command = parse(words, terminal=sys.stdin is not None and sys.stdin.isatty())
    except UsageError as error:
        raise _usage_error(str(error)) from None
    if command.show:
        _show(command)
        return
    _fill_standard_descriptors()
    try:
        from dynamo.cli.run.launch import launch

        launch(command, os.environ)
    except KeyboardInterrupt:  # before the event loop handles signals
        raise SystemExit(130) from None


def dynamo() -> None:
    """Dispatch to `run` (that is `dynamo-run`) and the other commands of `_USAGE`."""
    words = sys.argv[1:]
    match words:
        case ["run", *rest]:
            main(rest)
        case ["serve", *rest]:
            from dynamo.cli.serve import main as serve

            _fill_standard_descriptors()
            serve(rest, os.environ)
        case ["render", *rest]:
            from dynamo.cli.cluster.render import main as render

            render(rest, os.environ)
        case ["deploy", *rest]:
            from dynamo.cli.cluster.deploy import main as deploy

            deploy(rest, os.environ)
        case ["top", *rest]:
            from dynamo.cli.top.command import top

            raise SystemExit(top(rest, os.environ))
        case ["plan", *rest]:
            # Above this room: simulations run what this room starts.
            import_module("dynamo.lab.plan.command").main(rest)
        case ["rules", *rest]:
            import_module("dynamo.lab.rules.command").main(rest)
        case ["profile", *rest]:
            from dynamo.lab.profile.command import main as profile

            profile(rest)
        case ["inspect", *rest]:
            from dynamo.cli.inspect.command import inspect

            raise SystemExit(inspect(rest, os.environ))
        case ["--version"]:
            print(f"dynamo {__version__}")
        case [] | ["-h" | "--help"]:
            print(_USAGE, end="")
        case [word, *_]:
            raise _usage_error(f"unknown command 'dynamo {word}'{nearest(word, _COMMANDS)}")


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
