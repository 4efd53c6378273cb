"""`python -m dynamo.planner` with real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import openai
import pytest

from dynamo.cli.top.command import documents
from support.kube_server import KubeServer
from support.running import run
from support.services import free_port
from support.stack import Stack

PROGRAM = [sys.executable, "-m", "dynamo.planner"]
HOLDS = "saw no metrics; workers stay at 1: the metrics are missing"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--config", "{}"], "error: --config: deployment: environment local needs the file of `dynamo serve`"),
        (["--config", "gone.yaml"], "error: gone.yaml: No such file or directory"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = run(tmp_path, *words, program=PROGRAM)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(sentence)
    assert done.stderr.count(b"\n") == 1


async def test_requests_under_way_survive_three_scale_downs(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "serve.yaml").write_text(f"""
components:
  worker: {{kind: mocker, replicas: 4, flags: {{model-path: tiny, speedup-ratio: 0.5}}}}
  frontend: {{flags: {{http-port: {port}, router-mode: kv, migration-limit: 0}}}}
""")
    config = {
        "deployment": str(tmp_path / "serve.yaml"),
        "frontend_url": f"http://127.0.0.1:{port}",
        "load_adjustment_interval_seconds": 0.2,
        "throughput_adjustment_interval_seconds": 0.6,
    }
    async with Stack(tmp_path, {"DYN_LOG": "info"}) as stack:
        planner = await stack.python("-m", "dynamo.planner", "--config", json.dumps(config))
        await planner.line("planning every 0.2 s")
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        gone = asyncio.create_task(planner.line("workers stay at 1"))

        async def ask() -> list[int]:
            lengths = []
            while not gone.done():
                answer = await client.completions.create(
                    model="tiny", prompt="Once upon a time", max_tokens=60, extra_body={"ignore_eos": True}
                )
                assert answer.usage
                lengths.append(answer.usage.completion_tokens)
            return lengths

        async with client:
            answered = await asyncio.gather(*(ask() for _ in range(4)))
        assert {length for lengths in answered for length in lengths} == {60}
        for step in ("from 4 to 3", "from 3 to 2", "from 2 to 1"):
            assert any(f"workers go {step}" in line for line in planner.lines)
        async with aclosing(documents(f"http://127.0.0.1:{port}", None)) as states:
            fleet = await anext(fleet async for fleet in states if fleet["planners"])
        [row] = fleet["planners"].values()
        assert any("workers go from 2 to 1" in sentence["text"] for sentence in row["sentences"])


async def test_a_frontend_that_is_paused_and_killed_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("components: {worker: {kind: mocker, flags: {model-path: tiny}}}\n")
    async with Stack(tmp_path, {"DYN_LOG": "info"}) as stack:
        frontend = await stack.frontend("--router-mode", "kv")
        config = {
            "deployment": str(tmp_path / "serve.yaml"),
            "frontend_url": frontend.url,
            "load_adjustment_interval_seconds": 0.2,
        }
        planner = await stack.python("-m", "dynamo.planner", "--config", json.dumps(config))
        await planner.line("saw 0.0 requests/s; workers stay at 1")
        frontend.process.signal(signal.SIGSTOP)
        await planner.line(HOLDS)
        await planner.line("does not answer within")
        paused = len(planner.lines)
        frontend.process.signal(signal.SIGCONT)
        await planner.line("saw 0.0 requests/s; workers stay at 1", after=paused)
        frontend.process.signal(signal.SIGKILL)
        await planner.line(HOLDS, after=paused)
        await planner.line("Cannot connect", after=paused)
        assert not any("workers go" in line for line in planner.lines)


KUBECONFIG = """
clusters: [{{name: here, cluster: {{server: "{url}", certificate-authority: apiserver.pem}}}}]
users: [{{name: me, user: {user}}}]
contexts: [{{name: dev, context: {{cluster: here, user: me, namespace: serving}}}}]
current-context: dev
"""


async def test_the_workloads_of_a_kubeconfig_are_planned(tmp_path: Path) -> None:
    async with KubeServer(tmp_path) as server, Stack(tmp_path, {"DYN_LOG": "info"}) as stack:
        server.put("deployments", "worker", {"replicas": 1})
        (tmp_path / "config").write_text(KUBECONFIG.format(url=server.url, user="{token: first}"))
        config = {"environment": "kubernetes", "load_adjustment_interval_seconds": 0.2}
        words = ["-m", "dynamo.planner", "--config", json.dumps(config)]
        planner = await stack.python(*words, KUBECONFIG=str(tmp_path / "config"))
        await planner.line(HOLDS)
        server.tokens = set()
        await planner.line(f"{server.url} does not accept the credentials of {tmp_path}/config (context 'dev')")
        await planner.line("workers: their number is unknown, so it does not change")
        planner.signal(signal.SIGTERM)
        assert await planner.ended() == 0
        assert {verb for verb, _ in server.calls} == {"get"}

        (tmp_path / "config").write_text(KUBECONFIG.format(url=server.url, user="{auth-provider: {name: gcp}}"))
        planner = await stack.python(*words, KUBECONFIG=str(tmp_path / "config"))
        await planner.line(f"error: {tmp_path}/config: the user 'me': auth-provider: is not supported; use a token")
        assert await planner.ended() == 1
