"""A chat on a terminal, with whichever models this process knows."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process import unless_shut_down
from dynamo.serving.ask import RequestDefaults
from dynamo.serving.models import Models
from dynamo.serving.terminal.chat import TerminalChat, history_path

__all__ = ["TerminalChat", "history_path", "talk"]


async def talk(runtime: DistributedRuntime, models: Models, environ: Mapping[str, str]) -> None:
    """Wait for workers on the network and chat with what they serve."""

    async def chat() -> None:
        try:
            await models.start()
            if not models.served():
                print("waiting for a worker to join", file=sys.stderr)
            model = await models.wait_for()
            await TerminalChat(models, model.name, RequestDefaults(), history_path(environ)).run()
        finally:
            await models.close()

    await unless_shut_down(runtime, chat())
