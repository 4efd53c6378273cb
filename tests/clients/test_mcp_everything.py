"""Tools of MCP's own test server, over both transports, in responses of dynamo-run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import HERE, Installed
from support.running import running
from support.waiting import until_sync

pytestmark = pytest.mark.clients
CLIENT = "mcp-everything"
CALL = 'CALL every__get-sum {"a": 2, "b": 40}'


@contextmanager
def over_http(program: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {**os.environ, "PORT": str(port)}
    with open(os.devnull, "r+b") as null:
        command = [program, "streamableHttp"]
        server = subprocess.Popen(command, env=environ, stdin=null, stdout=null, stderr=null)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until_sync(listens)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_tool_runs_once_it_is_approved(client: Installed, long_model: Path, tmp_path: Path, transport: str) -> None:
    program = str(client.folder / "node_modules" / ".bin" / "mcp-server-everything")
    words = ("--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "basic", "--http-port", "0")
    engine, tokenizer = f"out=pytok:{HERE / 'scripted_engine.py'}", str(long_model / "tokenizer.json")

    def answer(*flags: str) -> None:
        with running(
            tmp_path, "in=http", engine, str(long_model), *words, *flags, SCRIPTED_TOKENIZER=tokenizer
        ) as process:
            url = process.url()
            tools = [{"type": "mcp", "server_label": "every"}]
            asked = ask(url, {"model": "scripted", "input": CALL, "tools": tools})
            assert len(found(asked, "mcp_list_tools")["tools"]) > 8
            request = found(asked, "mcp_approval_request")
            assert (request["name"], json.loads(request["arguments"])) == ("get-sum", {"a": 2, "b": 40})
            approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
            body = {"model": "scripted", "input": [approval], "previous_response_id": asked["id"], "tools": tools}
            assert "42" in found(ask(url, body), "mcp_call")["output"]

    if transport == "stdio":
        answer("--mcp-command", f"every={program} stdio")
    else:
        with over_http(program) as url:
            answer("--mcp-server", f"every={url}")


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/responses", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return dict(json.load(answer))


def found(response: dict[str, Any], kind: str) -> dict[str, Any]:
    (item,) = [one for one in response["output"] if one["type"] == kind]
    return dict(item)
