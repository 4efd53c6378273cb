"""A chat on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from dynamo.cli.chat.chat import TerminalChat, choose_model
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process import unless_shut_down
from dynamo.serving.ask import RequestDefaults
from dynamo.serving.models import Models

__all__ = ["TerminalChat", "chat_with_workers", "choose_model"]


async def chat_with_workers(runtime: DistributedRuntime, models: Models, environ: Mapping[str, str]) -> None:
    """Wait for a worker on the network and chat with its model."""

    async def chat() -> None:
        try:
            await models.start()
            if not models.served():
                print("waiting for a worker to join", file=sys.stderr)
            await models.wait_for()
            if name := await choose_model(models):
                await TerminalChat(models, name, RequestDefaults(), environ).run()
        finally:
            await models.close()

    await unless_shut_down(runtime, chat())
