"""What a client and an operator can see and set of the routing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.router import RoutingConfig
from dynamo.runtime import Context
from support.toys import Live, Scripted, toy_card, toy_folder
from support.waiting import PATIENCE

ASKED: dict[str, Any] = {"model": "toy", "nvext": {"extra_fields": ["worker_id", "routing", "timing"]}}
CHAT = {**ASKED, "messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 4}
TEXT = {**ASKED, "prompt": "hello " * 40, "max_tokens": 4}


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with Live(router=RoutingConfig(mode="kv")) as live:
        yield live


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
async def test_an_answer_says_which_worker_made_it_and_why(
    live: Live, tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    worker = await live.serve(Scripted().generate, toy_card(toy_folder(tmp_path)))
    status, answer = await live.post(path, body)
    assert status == 200
    stream = await live.events(path, {**body, "stream": True})
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    for told in (answer["nvext"], chunks[-1]["nvext"]):
        here = worker.instance_id
        assert told["worker_id"] == {"prefill_worker_id": here, "decode_worker_id": here}
        assert 0 <= told["timing"]["kv_hit_rate"] <= 1
        [reasons] = told["routing"]
        assert reasons["mode"] == "kv"
        assert reasons["chosen"]["worker_id"] == worker.instance_id
        assert reasons["prompt_tokens"] > 40
    status, answer = await live.post(path, {key: value for key, value in body.items() if key != "nvext"})
    assert "nvext" not in answer


async def test_a_rank_the_router_chose_is_in_the_answer(live: Live, tmp_path: Path) -> None:
    worker = Scripted()
    await live.serve(worker.generate, toy_card(toy_folder(tmp_path), data_parallel_size=2))
    for rank in (0, 1):
        asked = {**TEXT, "nvext": {"extra_fields": ["worker_id"], "dp_rank": rank}}
        status, answer = await live.post("/v1/completions", asked)
        told = answer["nvext"]["worker_id"]
        assert (status, told["prefill_dp_rank"], told["decode_dp_rank"]) == (200, rank, rank)
        assert worker.requests[-1]["routing"]["dp_rank"] == rank


async def test_the_last_decisions_are_listed_newest_first(live: Live, tmp_path: Path) -> None:
    await live.serve(Scripted().generate, toy_card(toy_folder(tmp_path)))
    for _ in range(3):
        assert (await live.post("/v1/completions", TEXT))[0] == 200
    told = (await live.get("/router/decisions"))["decisions"]
    assert len(told) == 3
    assert {one["model"] for one in told} == {"toy"}
    times = [one["time"] for one in told]
    assert times == sorted(times, reverse=True)
    assert (await live.get("/router/decisions?limit=1&model=toy&candidates=0"))["decisions"] == [
        {**told[0], "candidates": []}
    ]
    for query in ("limit=-1", "limit=x", "limit=257", "limit=1e3", "candidates=٣"):
        async with live.http.get(f"/router/decisions?{query}") as answer:
            assert answer.status == 400, query
    async with live.http.get("/router/decisions?model=nobody") as answer:
        assert answer.status == 404


async def test_the_routers_counts_are_metrics(live: Live, tmp_path: Path) -> None:
    await live.serve(Scripted().generate, toy_card(toy_folder(tmp_path)))
    assert (await live.post("/v1/completions", TEXT))[0] == 200
    async with live.http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    for pattern in (
        r'dynamo_component_router_requests_total{model="toy",router_id="\d+"} 1.0',
        r'dynamo_component_router_kv_hit_rate_count{model="toy",router_id="\d+"} 1.0',
        r'dynamo_component_router_active_requests{model="toy",router_id="\d+"} 0.0',
        r'dynamo_component_router_kv_known_blocks{model="toy",router_id="\d+"} 0.0',
        r'dynamo_component_router_non_max_overlap_selections_total{.*worker_type="decode"} 0.0',
        r'dynamo_frontend_router_queue_pending_requests{model="toy"} 0.0',
    ):
        assert any(re.fullmatch(pattern, line) for line in lines), pattern


async def test_beyond_a_threshold_requests_are_refused_and_asked_to_retry(live: Live, tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go_on.wait()
        yield {"token_ids": [5]}
        yield {"token_ids": [], "finish_reason": "length"}

    await live.serve(slow, toy_card(toy_folder(tmp_path)))
    limit = {"model": "toy", "active_prefill_tokens_threshold": 1}
    assert (await live.post("/busy_threshold", limit))[0] == 200
    first = asyncio.create_task(live.post("/v1/completions", TEXT))
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
    async with live.http.post("/v1/completions", json=TEXT) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert "busy" in (await answer.json())["error"]["message"]
    go_on.set()
    assert (await first)[0] == 200
    assert (await live.post("/v1/completions", TEXT))[0] == 200


async def test_direct_mode_refuses_requests_that_name_no_worker(tmp_path: Path) -> None:
    async with Live(router=RoutingConfig(mode="direct")) as live:
        worker = await live.serve(Scripted().generate, toy_card(toy_folder(tmp_path)))
        status, answer = await live.post("/v1/completions", TEXT)
        assert status == 400
        assert answer["error"]["param"] == "nvext.backend_instance_id"
        pinned = {**TEXT, "nvext": {"backend_instance_id": worker.instance_id}}
        assert (await live.post("/v1/completions", pinned))[0] == 200
