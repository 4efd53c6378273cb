"""A real Prometheus scrapes real processes under load: every query of every dashboard has samples."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import prometheus_client
import pytest

from dynamo.engines.llamacpp.tier_metrics import TierMetrics
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers import FolderTier, MemoryTier, TierStore
from observability.install import is_optional, program, why_missing
from support.services import free_port
from support.stack import Stack
from support.waiting import until

pytestmark = pytest.mark.observability
FOLDER = Path(__file__).parents[2] / "deploy" / "observability"
KNOWN_NAMES = re.compile(
    r"dynamo_\w+_ms metric names should not contain abbreviated|dynamo_planner_gpu_hours use base"
    r"|dynamo_component_kv_cache_event\w+ counter metrics should have"
)
"""What promtool says of names that ai-dynamo's dashboards read."""
STREAMS = 3
"""Streams that run at a time."""


@pytest.fixture
def promtool() -> str:
    if why := why_missing():
        (pytest.skip if is_optional() else pytest.fail)(f"there is no Prometheus: {why}")
    found = program("promtool")
    assert found
    return found


def dashboard_queries() -> list[str]:
    found = []
    for file in sorted((FOLDER / "grafana").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            found += [target["expr"] for target in panel["targets"]]
    return [query.replace("$__rate_interval", "1m").replace("$model", ".*") for query in found]


@contextlib.contextmanager
def tier_metrics(folder: Path) -> Iterator[int]:
    """The metrics of tiers, as a worker with llama.cpp shows them; yields the port."""
    store = TierStore(8, Pace(), memory=MemoryTier(1 << 20), folder=FolderTier(folder, 1 << 20, 1))
    registry, port = prometheus_client.CollectorRegistry(), free_port()
    registry.register(TierMetrics(store, 8))
    server, thread = prometheus_client.start_http_server(port, "127.0.0.1", registry)
    try:
        yield port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        store.close()


@contextlib.asynccontextmanager
async def prometheus(folder: Path, ports: list[int]) -> AsyncIterator[str]:
    """Its address."""
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    (folder / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{FOLDER / "rules.yml"}"]
scrape_configs: [{{job_name: dynamo, static_configs: [{{targets: [{targets}]}}]}}]
"""
    )
    port, binary = free_port(), program("prometheus")
    assert binary
    child = await asyncio.create_subprocess_exec(
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        await child.wait()


def test_promtool_accepts_the_rules(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", FOLDER / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_every_query_of_every_dashboard_has_samples(tmp_path: Path, promtool: str) -> None:
    http, planner, *status = (free_port() for _ in range(4))
    always = '{"policy": "always"}'
    worker = "kind: mocker, flags: {model-path: tiny, speedup-ratio: 5, engine-request-limit: 64, disaggregation-mode: "
    (tmp_path / "serve.yaml").write_text(f"""
components:
  prefill: {{{worker}prefill}}, env: {{DYN_SYSTEM_PORT: "{status[0]}"}}}}
  worker: {{{worker}decode}}, env: {{DYN_SYSTEM_PORT: "{status[1]}"}}}}
  frontend: {{flags: {{http-port: {http}, router-mode: kv, router-conditional-disagg-config: '{always}'}}}}
""")
    config = {
        "deployment": str(tmp_path / "serve.yaml"),
        "frontend_url": f"http://127.0.0.1:{http}",
        "mode": "disagg",
        "load_adjustment_interval_seconds": 2,
        "metric_reporting_prometheus_port": planner,
        "advisory": True,
    }
    with tier_metrics(tmp_path / "tier") as tiers:
        async with (
            Stack(tmp_path, {"DYN_LOG": "info"}) as stack,
            prometheus(tmp_path, [http, planner, *status, tiers]) as url,
            aiohttp.ClientSession() as session,
        ):
            process = await stack.python("-m", "dynamo.planner", "--config", json.dumps(config))
            await process.line("planning every 2 s")
            async with loaded(session, http):
                await every_query_answered(session, url)
                for port in (http, planner, *status):
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                        await asyncio.to_thread(check_metrics, promtool, await answer.read())
                async with session.get(f"{url}/api/v1/rules") as answer:
                    [group] = (await answer.json())["data"]["groups"]
                assert {rule["health"] for rule in group["rules"]} == {"ok"}


@contextlib.asynccontextmanager
async def loaded(session: aiohttp.ClientSession, port: int) -> AsyncIterator[None]:
    load = [asyncio.create_task(ask_forever(session, port, number)) for number in range(STREAMS)]
    try:
        yield
        assert not any(task.done() for task in load)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)


async def every_query_answered(session: aiohttp.ClientSession, url: str) -> None:
    missing = dashboard_queries()
    assert len(missing) > 90

    async def answered() -> bool:
        for query in list(missing):
            if await samples(session, url, query):
                missing.remove(query)
        return not missing

    try:
        await until(answered)
    finally:
        assert missing == []


async def samples(session: aiohttp.ClientSession, url: str, query: str) -> list[Any]:
    try:
        async with session.get(f"{url}/api/v1/query?query={quote(query)}") as answer:
            body = await answer.json()
    except aiohttp.ClientConnectionError:  # it has just been started
        return []
    assert body["status"] == "success", (query, body)
    # A share of nothing is not a number: the query works, and the load goes on until it is one.
    return [one for one in body["data"]["result"] if one["value"][1] != "NaN"]


async def ask_forever(session: aiohttp.ClientSession, port: int, number: int) -> None:
    for turn in range(1_000_000):
        model = "tiny" if turn % 10 else "no such model"
        # Every other prompt is new: those that a decode worker has cached are not split.
        text = f"Tell me about number {number} and {turn if turn % 2 else turn % 7}, please. " * 8
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 12, "ignore_eos": True}
        async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
            await answer.read()
        await asyncio.sleep(0.05)


def check_metrics(promtool: str, text: bytes) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if line]
    assert [line for line in complaints if not KNOWN_NAMES.match(line)] == []
