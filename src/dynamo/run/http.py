"""in=http: the frontend in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack

from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.server import Server
from dynamo.model import HubConfig
from dynamo.router import make_policy
from dynamo.run.grammar import Command
from dynamo.run.local import engine_served
from dynamo.run.settings import request_template
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.names import EndpointId


async def run(runtime: DistributedRuntime, command: Command, environ: Mapping[str, str]) -> int:
    config = FrontendConfig.from_env(
        environ,
        host=command.http_host,
        port=command.http_port,
        router_mode=command.router_mode,
        request_template=request_template(command.request_template),
    )
    server = Server(runtime, config, lambda: make_policy(config.router_mode), HubConfig.from_env(environ))
    async with AsyncExitStack() as stack:
        name = None
        if not command.output.remote:
            name = (await stack.enter_async_context(engine_served(runtime, command, environ, EndpointId()))).name
        try:
            await server.start()
            if name:
                await server.models.wait_for(name)
        except BaseException:
            await server.stop()
            raise
        print(greeting(server.url, config, name), file=sys.stderr, flush=True)
        await server.serve()
    return 0


def greeting(url: str, config: FrontendConfig, model: str | None) -> str:
    """Where it is, how to try it, and how to open it to others."""
    lines = [f"serving on {url}"]
    if model is None:
        lines.append(f"workers that join are found by themselves; to see their models: curl {url}/v1/models")
    else:
        body = {"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        text = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
        lines.append(f"try: curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{text}'")
    if config.host in ("127.0.0.1", "localhost", "::1"):
        lines.append("only this machine can reach it; to open it to the network add --http-host 0.0.0.0")
    return "\n".join(lines)
