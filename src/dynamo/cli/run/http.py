"""in=http: the frontend in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from dynamo.cli.run.answering import request_template
from dynamo.cli.run.grammar import Command
from dynamo.cli.run.local import served_endpoint, served_name, start_and_serve
from dynamo.frontend.config import FrontendConfig, nothing_served_hint
from dynamo.frontend.measure.request_trace import request_trace_from_env
from dynamo.frontend.measure.tracing import tracing_from_env
from dynamo.frontend.server import Server
from dynamo.model import HubConfig
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process import unless_shut_down
from dynamo.settings import given
from dynamo.settings.frontend import FrontendSettings
from dynamo.settings.router import RouterSettings


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    config = FrontendConfig.from_env(
        environ,
        request_template=request_template(command.request_template),
        endpoint=served_endpoint(command, environ),
        **given(command.flags, FrontendSettings, RouterSettings),
    )
    trace = request_trace_from_env(environ)
    server = Server(
        runtime, config, HubConfig.from_env(environ), tracing=tracing_from_env(environ), request_trace=trace
    )
    if not command.output.remote:
        server.models.expect(served_name(command))
    try:
        # Listen first: a port that is in use should be reported before a large model is loaded.
        await unless_shut_down(runtime, server.start())
        if runtime.is_shutting_down:
            return 0
        if command.output.remote:
            _greet(server, config, None)
            if not server.models.served():
                hint = nothing_served_hint(config, runtime.config, server.models.failures())
                print(hint, file=sys.stderr, flush=True)
            await server.serve()
        else:
            place, kv_events = config.serves.own_endpoint(), config.router.mode == "kv"
            async with start_and_serve(runtime, command, environ, place, kv_events=kv_events) as card:
                if await unless_shut_down(runtime, server.models.wait_for(card.name)):
                    _greet(server, config, card.name)
                    await server.serve()
    finally:
        await server.stop()
    return 0


def _greet(server: Server, config: FrontendConfig, model: str | None) -> None:
    print(greeting(server.url, config, model), file=sys.stderr, flush=True)
    if server.grpc:
        print(f"serving gRPC on {server.grpc.address}", file=sys.stderr, flush=True)


def greeting(url: str, config: FrontendConfig, model: str | None) -> str:
    """The address, a request to try, and how to open it to other machines."""
    lines = [f"serving on {url}"]
    if config.ui:
        lines.append(f"to chat, open {url}/ in a browser")
        lines.append(f"to watch the workers, open {url}/fleet")
    if model is None:
        lines.append(f"workers that join are found by themselves; to see their models: curl {url}/v1/models")
    else:
        body = {"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        text = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
        lines.append(f"try: curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{text}'")
    if config.host in ("127.0.0.1", "localhost", "::1"):
        lines.append("only this machine can reach it; to open it to the network add --http-host 0.0.0.0")
    return "\n".join(lines)
