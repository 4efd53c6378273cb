"""What text, stdin and batch share: a model that answers, in this process or on the network, and how it is asked."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from dynamo.model import HubConfig
from dynamo.router import RouterConfig
from dynamo.run.grammar import Command
from dynamo.run.local import engine_served
from dynamo.run.settings import request_template, router_flags
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId
from dynamo.serving.ask import RequestDefaults
from dynamo.serving.models import Models, ServedModel


@asynccontextmanager
async def answering(
    runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]
) -> AsyncIterator[tuple[Models, ServedModel]]:
    """The models there are and the one to ask, ready while the block runs."""
    router = RouterConfig.from_env(environ, **router_flags(command))
    models = Models(runtime, router, HubConfig.from_env(environ))
    async with AsyncExitStack() as stack:
        name = command.model_name
        if not command.output.remote:
            name = (await stack.enter_async_context(engine_served(runtime, command, environ, EndpointId()))).name
        try:
            await models.start()
            if command.output.remote and name not in [None, *(model.name for model in models.served())]:
                print(f"waiting for a worker that serves '{name}'", file=sys.stderr)
            elif not models.served():
                print("waiting for a worker to join", file=sys.stderr)
            yield models, await models.wait_for(name)
        finally:
            await models.close()


def wishes(command: Command) -> RequestDefaults:
    """How requests are worded that the user gave only the text of."""
    template = request_template(command.request_template)
    # What echo_core gives back is the prompt, with the end-of-turn tokens of its template: they must not end it.
    echo = command.output.engine == "echo_core"
    return RequestDefaults(
        temperature=template.temperature if template else None,
        max_completion_tokens=template.max_completion_tokens if template else None,
        raw=echo,
    )
