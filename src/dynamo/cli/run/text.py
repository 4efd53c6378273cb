"""in=text: a chat on this terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.cli.chat import TerminalChat, choose_model
from dynamo.cli.run.answering import RunError, request_defaults, serve_models
from dynamo.cli.run.grammar import Command
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process import unless_shut_down


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise RunError("in=text is a chat and needs a terminal; in a pipe use in=stdin")
    return await unless_shut_down(runtime, _chat(runtime, command, environ)) or 0


async def _chat(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    defaults = request_defaults(command)
    async with serve_models(runtime, command, environ) as (models, model):
        name: str | None = model.name
        if command.output.remote and not command.model_name:
            name = await choose_model(models)
        if name:
            await TerminalChat(models, name, defaults, environ).run()
    return 0
