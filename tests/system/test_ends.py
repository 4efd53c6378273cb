"""Every command that serves ends by SIGTERM with all that it began: threads, tasks, children, temporary files."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from dynamo.runtime.inspection.place import inspection_folder
from support.services import binary, free_port
from support.stack import Process, Stack
from support.waiting import until

AT_EXIT = Path(__file__).parents[1] / "support" / "at_exit"
DEPLOYMENT = """
components:
  worker: {{kind: mocker, flags: {{model-path: tiny}}}}
  frontend: {{flags: {{http-port: {port}, http-workers: {workers}, router-mode: kv}}}}
"""
LONG = "hello " * 400
FAULTS = ("was destroyed", "never retrieved", "never awaited", "Traceback", "Exception ignored")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short path: the processes put sockets there."""
    with tempfile.TemporaryDirectory(prefix="ends") as folder:
        yield Path(folder)


@pytest.fixture
async def stack(tmp_path: Path, temporary: Path) -> AsyncIterator[Stack]:
    (tmp_path / "reports").mkdir()
    environ = {
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_LOG": "info",
        "HOME": str(tmp_path),
        "TMPDIR": str(temporary),
        "DYNAMO_TESTS_EXIT_REPORTS": str(tmp_path / "reports"),
    }
    async with Stack(tmp_path, environ, AT_EXIT) as stack:
        yield stack


async def ask(url: str) -> None:
    """A question to the one model, long enough for a thread of the tokenizer."""

    async def name() -> str | None:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as answer:
            models = (await answer.json())["data"]
            return models[0]["id"] if models else None

    question = {"model": await until(name), "messages": [{"role": "user", "content": LONG}], "max_tokens": 3}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=question) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def end(process: Process, tmp_path: Path, temporary: Path, processes: int = 1) -> None:
    """SIGTERM; then nothing may be left of it, nor of the processes that it started."""
    process.signal(signal.SIGTERM)
    assert await process.ended() == 0, process.output
    reports = [json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*.json")]
    assert len(reports) == processes, process.output
    assert [report for report in reports if report["threads"] or report["tasks"]] == []
    assert [line for line in process.lines if any(fault in line for fault in FAULTS)] == []
    sockets = inspection_folder({"TMPDIR": str(temporary)})
    left = [path for path in temporary.rglob("*") if path != sockets]
    assert left == []


async def test_dynamo_run_ends_with_all_that_it_began(stack: Stack, tmp_path: Path, temporary: Path) -> None:
    process = await stack.python(binary("dynamo-run"), "in=http", "--http-port", "0")
    await ask((await process.line("serving on http")).rpartition(" ")[2])
    await end(process, tmp_path, temporary)


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "dynamo.mocker", "--model-path", "tiny"],
        ["-m", "dynamo.mocker", "--model-path", "tiny", "--num-workers", "3"],
        ["-m", "dynamo.worker", "echo_full", "--model-path", "tiny"],
        ["-m", "dynamo.llama_cpp", "--model-path", "tiny"],
    ],
    ids=["mocker", "mockers", "echo", "llamacpp"],
)
async def test_a_worker_and_a_frontend_end_with_all_that_they_began(
    words: list[str], stack: Stack, tmp_path: Path, temporary: Path
) -> None:
    worker = await stack.python(*words)
    frontend = await stack.frontend("--router-mode", "kv")
    await ask(frontend.url)
    frontend.process.signal(signal.SIGTERM)
    assert await frontend.process.ended() == 0
    await end(worker, tmp_path, temporary, processes=2)


async def test_a_router_ends_with_all_that_it_began(stack: Stack, tmp_path: Path, temporary: Path) -> None:
    worker = await stack.python(
        "-m", "dynamo.mocker", "--model-path", "tiny", "--endpoint", "dyn://dynamo.mocker.generate"
    )
    await worker.line("serves 'tiny'")
    router = await stack.python(
        "-m", "dynamo.router", "--endpoint", "dynamo.mocker.generate", "--router-block-size", "64"
    )
    await router.line("router for")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0
    await end(router, tmp_path, temporary, processes=2)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_deployment_ends_with_all_that_it_began(
    workers: int, stack: Stack, tmp_path: Path, temporary: Path
) -> None:
    port = free_port()
    (tmp_path / "serve.yaml").write_text(DEPLOYMENT.format(port=port, workers=workers))
    process = await stack.python(binary("dynamo"), "serve", str(tmp_path / "serve.yaml"))
    await process.line("all components are ready")
    await ask(f"http://127.0.0.1:{port}")
    await end(process, tmp_path, temporary, processes=3 if workers == 1 else 5)


async def test_a_planner_ends_with_all_that_it_began(stack: Stack, tmp_path: Path, temporary: Path) -> None:
    port = free_port()
    (tmp_path / "serve.yaml").write_text(DEPLOYMENT.format(port=port, workers=1))
    config = {"deployment": str(tmp_path / "serve.yaml"), "frontend_url": f"http://127.0.0.1:{port}"}
    planner = await stack.python("-m", "dynamo.planner", "--config", json.dumps(config))
    await planner.line("planning every")
    await ask(f"http://127.0.0.1:{port}")
    await end(planner, tmp_path, temporary, processes=3)
