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
    module: str
    """Imported only when the command runs; rooms above this one are named as text."""
    main: str = "main"
    """Is called with the words and the environment."""
    parser: str = "parser"
    """Makes its parser, for completion; none if empty."""

    def run(self, words: list[str], environ: Any) -> int | None:
        status: int | None = getattr(import_module(self.module), self.main)(words, environ)
        return status

    @property
    def flags(self) -> list[str]:
        return sorted(getattr(import_module(self.module), self.parser)().flags) if self.parser else []


_MODELS = "dynamo.cli.models.command"
COMMANDS = (
    CliCommand(
        name="run", takes="[in=… out=…] [MODEL]", about="chat, serve, batch or work in one process", group="models",
        module="dynamo.cli.main", main="run", parser="",
    ),
    CliCommand(
        name="pull", takes="NAME", about="download a model", group="models",
        module=_MODELS, main="pull", parser="pull_parser",
    ),
    CliCommand(
        name="list", about="the models on this machine", group="models",
        module=_MODELS, main="show", parser="list_parser",
    ),
    CliCommand(
        name="rm", takes="NAME…", about="remove a model from this machine", group="models",
        module=_MODELS, main="remove", parser="rm_parser",
    ),
    CliCommand(
        name="serve", takes="FILE.yaml", about="several processes on this machine", group="fleet",
        module="dynamo.cli.serve",
    ),
    CliCommand(
        name="deploy", takes="FILE.yaml", about="the same in a Kubernetes cluster", group="fleet",
        module="dynamo.cli.cluster.deploy",
    ),
    CliCommand(
        name="render", takes="FILE.yaml", about="what that makes in a cluster, as plain objects", group="fleet",
        module="dynamo.cli.cluster.render",
    ),
    CliCommand(
        name="top", takes="[URL]", about="watch a server's workers, requests and routing decisions", group="fleet",
        module="dynamo.cli.top.command", main="top",
    ),
    CliCommand(
        name="inspect", takes="[PROCESS]", about="look inside a running process", group="fleet",
        module="dynamo.cli.inspect.command", main="inspect",
    ),
    CliCommand(
        name="plan", takes="[TRACE]", about="how many workers a traffic needs", group="before you build",
        module="dynamo.lab.plan.command",
    ),
    CliCommand(
        name="rules", takes="TRACE…", about="which router rule is best on a traffic", group="before you build",
        module="dynamo.lab.rules.command",
    ),
    CliCommand(
        name="profile", takes="URL", about="measure the engine behind a server, for simulations",
        group="before you build",
        module="dynamo.lab.profile.command",
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
