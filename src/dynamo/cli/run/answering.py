"""What inputs share: the model to ask, here or on the network, the defaults of requests, and how they fail."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from dynamo.cli.run.grammar import Command
from dynamo.cli.run.local import served_endpoint, start_and_serve
from dynamo.engines.registry import engine_entry
from dynamo.model import HubConfig
from dynamo.protocols.errors import StartError
from dynamo.router import RoutingConfig
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import NamespaceFilter
from dynamo.serving.ask import RequestDefaults
from dynamo.serving.models import Models
from dynamo.serving.request_template import RequestTemplate
from dynamo.serving.served_model import ServedModel
from dynamo.settings.frontend import FrontendSettings


class RunError(StartError):
    """dynamo-run cannot go on; the message is one line and names the fix."""


@asynccontextmanager
async def serve_models(
    runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]
) -> AsyncIterator[tuple[Models, ServedModel]]:
    """Serve all models while the block runs; yields them and the one to ask."""
    router, http = command.read(RoutingConfig, environ), command.read(FrontendSettings, environ)
    serves = NamespaceFilter(http.namespace, http.namespace_prefix, served_endpoint(command, environ))
    models = Models(
        runtime,
        router,
        HubConfig.from_env(environ),
        serves,
        None,
        http.migration_limit,
        http.migration_max_seq_len,
    )
    async with AsyncExitStack() as stack:
        name = command.model_name
        if command.output.engine:
            place, kv_events = serves.own_endpoint(), router.mode == "kv"
            served = start_and_serve(runtime, command, environ, place, kv_events=kv_events)
            name = (await stack.enter_async_context(served)).name
        try:
            await models.start()
            if not command.output.engine:
                _say_what_is_awaited(name, models.served())
            yield models, await models.wait_for(name)
        finally:
            await models.close()


def _say_what_is_awaited(name: str | None, served: Sequence[ServedModel]) -> None:
    if name is not None and name not in [model.name for model in served]:
        print(f"waiting for a worker that serves '{name}'", file=sys.stderr)
    elif not served:
        print("waiting for a worker to join", file=sys.stderr)


def request_defaults(command: Command) -> RequestDefaults:
    """The options of requests for which the user gives only a text."""
    template = request_template(command.request_template)
    engine = command.output.engine
    return RequestDefaults(
        temperature=template.temperature if template else None,
        max_completion_tokens=template.max_completion_tokens if template else None,
        raw=engine is not None and engine_entry(engine).repeats_prompt,
    )


def request_template(path: str | None) -> RequestTemplate | None:
    if path is None:
        return None
    try:
        return msgspec.json.decode(Path(path).expanduser().read_bytes(), type=RequestTemplate)
    except OSError as error:
        raise RunError(f"--request-template {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"--request-template {path}: {said}") from error
