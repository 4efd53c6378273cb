"""The Python listings of the guides run as they are written."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.runtime import Context, DistributedRuntime, RuntimeConfig
from support.running import Process, environment
from support.waiting import PATIENCE

ROOT = Path(__file__).parents[1]


def listings(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def listing(page: str, part: str) -> str:
    (found,) = [code for code in listings(page) if part in code]
    return found


async def run(code: str, **names: Any) -> dict[str, Any]:
    """Run a listing that may await, with these names around it."""
    compiled = compile(code, "<listing>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.isawaitable(result):
        await result
    return names


@contextlib.asynccontextmanager
async def runtime_in(folder: Path) -> AsyncIterator[DistributedRuntime]:
    config = RuntimeConfig.from_env({"DYN_FILE_KV": str(folder)}, discovery_backend="file")
    async with DistributedRuntime(config=config) as runtime:
        yield runtime


def test_every_listing_is_python() -> None:
    pages = ["README.md", *(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
    for page in pages:
        for code in listings(page):
            compile(code.replace(", …", ""), page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", ["README.md", "docs/engines.md"])
async def test_the_worker_of_the_guide_serves_and_leaves_offline(page: str, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(listing(page, "@dynamo_worker()"))
    environ = {
        **os.environ,
        "DYN_FILE_KV": str(tmp_path / "kv"),
        "DYN_DISCOVERY_BACKEND": "file",
        "HF_HUB_OFFLINE": "1",
    }
    worker = await asyncio.create_subprocess_exec(sys.executable, str(script), env=environ)
    try:
        async with asyncio.timeout(PATIENCE), runtime_in(tmp_path / "kv") as runtime:
            client = await runtime.endpoint("mine.backend.generate").client()
            await client.wait_for_instances()
            stream = await client.generate({"token_ids": [5, 6]}, annotated=False)
            assert [item async for item in stream] == [{"token_ids": [5]}, {"token_ids": [6]}]
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


async def test_the_handler_of_the_guide_ends_when_it_is_stopped() -> None:
    code = listing("docs/engines.md", "is_stopped()").partition("uvloop.install()")[0]
    generate = (await run(code))["generate"]
    context = Context()
    items = generate({"token_ids": [1, 2, 3]}, context)
    assert await anext(items) == {"token_ids": [1]}
    context.stop_generating()
    assert [item async for item in items] == []


async def test_the_generator_of_a_file_answers() -> None:
    generate = (await run(listing("docs/engines.md", "# or (request, context)")))["generate"]
    assert [item async for item in generate({"token_ids": [1]})] == [{"token_ids": [791]}]


async def test_the_publishers_of_the_guide_publish(tmp_path: Path) -> None:
    async with runtime_in(tmp_path) as runtime:
        names = {"endpoint": runtime.endpoint("a.b.c"), "token_ids": list(range(64))}
        after = await run(listing("docs/kv-events.md", "publish_stored"), **names)
        await run(listing("docs/kv-events.md", "zmq_replay_endpoint"), **after)


async def test_the_client_of_the_guide_reads_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def mirror(request: Any) -> AsyncIterator[Any]:
        yield request["any"][0]

    async with runtime_in(tmp_path) as runtime:
        serving = asyncio.create_task(runtime.endpoint("mine.backend.generate").serve_endpoint(mirror))
        await run(listing("docs/engines.md", "client.round_robin"), runtime=runtime)
        assert capsys.readouterr().out == "JSON-like\n"
        runtime.shutdown()
        await serving


def test_every_recipe_of_the_cookbook_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cookbook.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    printed, ran = "", 0
    with contextlib.ExitStack() as servers:
        address = ""
        for kind, code in blocks:
            if kind == "text":
                assert printed.strip() == code.strip()
            elif name := re.match(r"# (\w+\.\w+)\n", code):
                (tmp_path / name[1]).write_text(code)
            elif code.startswith("dynamo-run in=http"):
                servers.close()
                server = Process(tmp_path, *code.split()[1:], "--http-port", "0")
                servers.callback(server.close)
                address = server.url()
            else:
                shell = ["bash", "-e", "-o", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
                done = subprocess.run(
                    [*shell, code.replace("http://localhost:8080", address).replace("curl ", "curl --fail-with-body ")],
                    capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path, PATH=path),
                    timeout=PATIENCE, check=False,
                )  # fmt: skip
                assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
                printed, ran = done.stdout, ran + 1
    assert ran == len(re.findall(r"^### ", page, re.MULTILINE)) + 1  # each recipe, and the one of keys


def written_in_the_source() -> str:
    """Every text in the source, on a line of its own, with `…` in the place of what is put into it."""
    found = []
    for module in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%\w", "…", node.value))
    return "\n".join(found)


def test_every_message_of_the_troubleshooting_page_is_one_of_ours() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    cells = re.findall(r"^\| (?:\d{3} )?(`[^|]*) \|", page, re.MULTILINE)
    messages = [message for cell in cells for message in cell.split("`")[1::2]]
    assert len(messages) > 40
    source = written_in_the_source()
    assert [part for message in messages for part in message.split("…") if part.strip(" .'()") not in source] == []
