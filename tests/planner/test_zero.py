"""No workers while there are no requests: the decisions, and `python -m dynamo.planner` with real processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from msgspec import structs

from dynamo.planner import Observation, PlannerConfig, PoolDecision, PoolSeen, TrafficSeen, decide
from dynamo.planner.config import PlannerConfigError, parse_config
from dynamo.planner.observe import measurement, parse_page
from support.services import free_port
from support.stack import Stack
from support.waiting import until

CONFIG = PlannerConfig(
    environment="virtual", min_endpoint=0, scale_to_zero_seconds=60.0, throughput_adjustment_interval_seconds=30.0
)
QUIET = TrafficSeen(requests=0)
TARGETS = ("throughput", "latency", "load", "sla")


def ticks(count: int, workers: int, traffic: TrafficSeen | None = QUIET, **pool: Any) -> list[Observation]:
    """Observations five seconds apart."""
    known: dict[str, Any] = {"wanted": workers, "serving": workers} | pool
    return [
        Observation(at=5.0 * at, seconds=5.0, traffic=traffic, decode=PoolSeen(**known)) for at in range(count)
    ]  # fmt: skip


def joined(*parts: list[Observation]) -> list[Observation]:
    return [structs.replace(seen, at=5.0 * at) for at, seen in enumerate(seen for part in parts for seen in part)]


def chosen(history: list[Observation], config: PlannerConfig = CONFIG) -> PoolDecision:
    decision = decide(history, config).decode
    assert decision
    return decision


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_worker_goes_after_the_whole_time_without_requests(target: Any) -> None:
    config = structs.replace(CONFIG, optimization_target=target)
    assert chosen(ticks(11, 1), config).workers == 1
    decision = chosen(ticks(12, 1), config)
    assert (decision.workers, decision.state) == (0, "scale_down")
    assert decision.reason == "there was no request for 60 s"


@pytest.mark.parametrize("target", TARGETS)
def test_a_minimum_of_one_keeps_one(target: Any) -> None:
    config = structs.replace(CONFIG, min_endpoint=1, optimization_target=target)
    assert chosen(ticks(100, 1), config).workers == 1


def test_more_workers_than_one_go_step_by_step() -> None:
    assert chosen(ticks(12, 3)).workers == 2
    assert chosen(ticks(12, 3), structs.replace(CONFIG, scale_down_step=8)).workers == 0


@pytest.mark.parametrize(
    "last",
    [
        ticks(1, 1, TrafficSeen(requests=1)),
        ticks(1, 1, TrafficSeen(requests=0, unfinished=1)),
        ticks(1, 1, None),
        ticks(1, 1, serving=0, starting=1),
        ticks(1, 0),
    ],
    ids=["a request came", "one is still answered", "no metrics", "the worker started", "there was none"],
)
def test_the_time_begins_again(last: list[Observation]) -> None:
    assert chosen(joined(ticks(50, 1), last, ticks(11, 1))).workers == 1
    assert chosen(joined(ticks(50, 1), last, ticks(12, 1))).workers == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_request_that_waits_gets_a_worker_at_once(target: Any) -> None:
    config = structs.replace(CONFIG, optimization_target=target)
    none = ticks(50, 0)
    assert (chosen(none, config).workers, chosen(none, config).state) == (0, "no_change")
    decision = chosen(joined(none, ticks(1, 0, TrafficSeen(requests=0, unfinished=3))), config)
    assert (decision.workers, decision.state, decision.reason) == (1, "scale_up", "requests without an answer: 3")
    starting = ticks(20, 1, TrafficSeen(requests=0, unfinished=3), serving=0, starting=1)
    assert chosen(joined(none, starting), config).workers == 1


def test_without_metrics_none_stays_none() -> None:
    assert (chosen(ticks(5, 0, None)).workers, chosen(ticks(5, 0, None)).state) == (0, "insufficient_data")


def test_none_that_someone_asked_for_by_hand_stays_for_a_while() -> None:
    waits = TrafficSeen(requests=0, unfinished=1)
    by_hand = joined(ticks(5, 2, asked=2), ticks(5, 0, waits, asked=2))
    assert (chosen(by_hand).workers, chosen(by_hand).state) == (0, "manual_change")


def test_each_role_has_a_minimum_and_the_budget_holds_one_worker_of_each() -> None:
    config = structs.replace(CONFIG, mode="disagg", min_endpoint=1, prefill_min_endpoint=0)
    history = [structs.replace(seen, prefill=seen.decode) for seen in ticks(12, 1)]
    decision = decide(history, config)
    assert decision.prefill
    assert decision.decode
    assert (decision.prefill.workers, decision.decode.workers) == (0, 1)
    with pytest.raises(PlannerConfigError, match="max_gpu_budget: is 1, but the minimum of 1 prefill workers and 1"):
        parse_config("{environment: virtual, mode: disagg, min_endpoint: 0, max_gpu_budget: 1}")


def test_a_model_without_workers_that_had_no_request_yet_is_seen() -> None:
    page = parse_page(b'dynamo_frontend_model_waiting_requests{model="tiny"} 0\n', "tiny")
    seen = measurement(page, page)
    assert seen
    assert (seen.traffic, seen.pools) == (QUIET, {})


def test_requests_under_way_and_waiting_requests_are_unfinished() -> None:
    page = parse_page(
        b'dynamo_frontend_inflight_requests{model="tiny"} 2\ndynamo_frontend_model_waiting_requests{model="tiny"} 3\n'
        b'dynamo_frontend_model_waiting_requests{model="other"} 9\n',
        "tiny",
    )
    seen = measurement(page, page)
    assert seen
    assert seen.traffic.unfinished == 5


async def test_workers_go_and_come_back_and_every_request_is_answered(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "serve.yaml").write_text(f"""
components:
  worker: {{kind: mocker, replicas: 2, flags: {{model-path: tiny, speedup-ratio: 10}}}}
  frontend: {{flags: {{http-port: {port}, model-wait-secs: 120, model-restart-secs: 600,
    migration-limit: 1, migration-wait-secs: 120}}}}
""")
    config = {
        "deployment": str(tmp_path / "serve.yaml"),
        "frontend_url": url,
        "min_endpoint": 0,
        "load_adjustment_interval_seconds": 0.2,
        "throughput_adjustment_interval_seconds": 0.6,
        "scale_to_zero_seconds": 1.0,
    }
    async with Stack(tmp_path, {"DYN_LOG": "info"}) as stack:
        planner = await stack.python("-m", "dynamo.planner", "--config", json.dumps(config))
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

        async def ask() -> int:
            answer = await client.completions.create(
                model="tiny", prompt="Once upon a time", max_tokens=20, extra_body={"ignore_eos": True}
            )
            assert answer.usage
            return answer.usage.completion_tokens

        async def rests() -> bool:
            """A sentence is not said twice in a row, so the newest one counts."""
            said = [line for line in planner.lines if "dynamo.planner.planner: saw" in line]
            return said[-1].endswith("workers stay at 0: no request waits")

        async with client:
            # While the last worker leaves.
            await planner.line("workers go from 1 to 0: there was no request for 1 s")
            assert await asyncio.gather(*(ask() for _ in range(8))) == [20] * 8
            for _ in range(2):
                await until(rests)
                assert [model.id async for model in client.models.list()] == ["tiny"]
                seen = len(planner.lines)
                assert await asyncio.gather(*(ask() for _ in range(8))) == [20] * 8
                await planner.line("workers go from 0 to 1: requests without an answer:", after=seen)
            async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as page:
                assert 'dynamo_frontend_model_waiting_requests{model="tiny"} 0' in await page.text()
