"""The commands of `dynamo`, each once: help, completion and "did you mean" follow from this table."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msgspec import Struct


class CliCommand(Struct, frozen=True, kw_only=True):
    name: str
    takes: str = ""
    about: str
    group: str
    main: str
    """`module:function`, called with the words and the environment; only the module of the command that runs is
    imported, and rooms above this one are named as text.
    """
    parser: str = ""
    """`module:function` that makes its parser, for completion."""

    def run(self, words: list[str], environ: Any) -> int | None:
        status: int | None = _found(self.main)(words, environ)
        return status

    @property
    def flags(self) -> list[str]:
        return sorted(_found(self.parser)().flags) if self.parser else []


_MODELS = "dynamo.cli.models.command"
COMMANDS = (
    CliCommand(
        name="run", takes="[in=… out=…] [MODEL]", about="chat, serve, batch or work in one process", group="models",
        main="dynamo.cli.main:run",
    ),
    CliCommand(
        name="pull", takes="NAME", about="download a model", group="models",
        main=f"{_MODELS}:pull", parser=f"{_MODELS}:pull_parser",
    ),
    CliCommand(
        name="list", about="the models on this machine", group="models",
        main=f"{_MODELS}:show", parser=f"{_MODELS}:list_parser",
    ),
    CliCommand(
        name="rm", takes="NAME…", about="remove a model from this machine", group="models",
        main=f"{_MODELS}:remove", parser=f"{_MODELS}:rm_parser",
    ),
    CliCommand(
        name="serve", takes="FILE.yaml", about="several processes on this machine", group="fleet",
        main="dynamo.cli.serve:main", parser="dynamo.cli.serve:parser",
    ),
    CliCommand(
        name="deploy", takes="FILE.yaml", about="the same in a Kubernetes cluster", group="fleet",
        main="dynamo.cli.cluster.deploy:main", parser="dynamo.cli.cluster.deploy:parser",
    ),
    CliCommand(
        name="render", takes="FILE.yaml", about="what that makes in a cluster, as plain objects", group="fleet",
        main="dynamo.cli.cluster.render:main", parser="dynamo.cli.cluster.render:parser",
    ),
    CliCommand(
        name="top", takes="[URL]", about="watch a server's workers, requests and routing decisions", group="fleet",
        main="dynamo.cli.top.command:top", parser="dynamo.cli.top.command:parser",
    ),
    CliCommand(
        name="inspect", takes="[PROCESS]", about="look inside a running process", group="fleet",
        main="dynamo.cli.inspect.command:inspect", parser="dynamo.cli.inspect.command:parser",
    ),
    CliCommand(
        name="plan", takes="[TRACE]", about="how many workers a traffic needs", group="before you build",
        main="dynamo.lab.plan.command:main", parser="dynamo.lab.plan.command:parser",
    ),
    CliCommand(
        name="rules", takes="TRACE…", about="which router rule is best on a traffic", group="before you build",
        main="dynamo.lab.rules.command:main", parser="dynamo.lab.rules.command:parser",
    ),
    CliCommand(
        name="profile", takes="URL", about="measure the engine behind a server, for simulations",
        group="before you build",
        main="dynamo.lab.profile.command:main", parser="dynamo.lab.profile.command:parser",
    ),
)  # fmt: skip
BY_NAME = {command.name: command for command in COMMANDS}
OTHER_NAMES = {
    "chat": "run", "download": "pull", "fetch": "pull", "ls": "list", "models": "list", "remove": "rm", "delete": "rm",
    "up": "serve", "start": "serve", "ps": "inspect", "status": "top", "watch": "top", "bench": "profile",
}  # fmt: skip
"""What other programs call them."""


def usage() -> str:
    lines = ["usage: dynamo COMMAND …      each has a --help of its own"]
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += ["", group]
        lines.append(f"  dynamo {f'{command.name} {command.takes}':<28} {command.about}")
    lines += ["", "more", f"  dynamo {'--version':<28} the version"]
    lines.append(f"  dynamo {'--completion SHELL':<28} a script that completes all of this in bash, zsh or fish")
    return "\n".join(lines) + "\n"


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
