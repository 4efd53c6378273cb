from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from dynamo.kv.messages import ActiveLoad
from dynamo.llm import WorkerMetricsPublisher
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from support.waiting import PATIENCE


class Heard:
    def __init__(self) -> None:
        self.loads: list[ActiveLoad] = []
        self._more = asyncio.Event()

    def __call__(self, subject: str, data: bytes) -> None:
        self.loads.append(msgspec.msgpack.decode(data, type=ActiveLoad))
        self._more.set()

    async def count(self, count: int) -> list[ActiveLoad]:
        async with asyncio.timeout(PATIENCE):
            while len(self.loads) < count:
                self._more.clear()
                await self._more.wait()
        return self.loads


@pytest.fixture
async def worker() -> AsyncIterator[DistributedRuntime]:
    async with DistributedRuntime(config=RuntimeConfig.in_process({})) as runtime:
        yield runtime


@pytest.fixture
async def heard(worker: DistributedRuntime) -> Heard:
    heard = Heard()
    await worker.events.subscribe("namespace.ns.component.backend.kv_metrics", heard)
    return heard


async def publisher(worker: DistributedRuntime) -> WorkerMetricsPublisher:
    made = WorkerMetricsPublisher()
    await made.create_endpoint(worker.endpoint("ns.backend.generate"))
    return made


async def test_figures_that_change_nothing_are_not_sent(worker: DistributedRuntime, heard: Heard) -> None:
    out = await publisher(worker)
    out.publish(0, 5, 7)
    (first,) = await heard.count(1)
    assert first == ActiveLoad(worker_id=worker.instance_id, active_decode_blocks=5, kv_used_blocks=7)
    out.publish(None, 5)
    out.publish(0, kv_used_blocks=7)
    out.publish(0, kv_used_blocks=8)
    _, second = await heard.count(2)
    assert (second.active_decode_blocks, second.kv_used_blocks) == (5, 8)


async def test_the_latest_figures_are_told_again_and_again_as_one_message_may_be_lost(
    worker: DistributedRuntime, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamo.kv.publish.load_metrics.LOAD_REPORT_SECONDS", 0.001)
    out = await publisher(worker)
    out.publish(0, 5)
    out.publish(1, 6)
    loads = await heard.count(6)
    assert {(load.dp_rank, load.active_decode_blocks) for load in loads} == {(0, 5), (1, 6)}


async def test_changes_of_one_moment_are_sent_as_one(worker: DistributedRuntime, heard: Heard) -> None:
    out = await publisher(worker)
    for used in range(50):
        out.publish(kv_used_blocks=used + 1)
        out.publish(1, kv_used_blocks=used + 1)
    loads = await heard.count(2)
    assert [(load.dp_rank, load.kv_used_blocks) for load in loads] == [(0, 50), (1, 50)]


async def test_publishers_of_one_worker_share_its_endpoint(worker: DistributedRuntime, heard: Heard) -> None:
    one, other = await publisher(worker), await publisher(worker)
    one.publish(0, kv_used_blocks=1)
    thread = threading.Thread(target=other.publish, args=(1, 2, 3))
    thread.start()
    await heard.count(2)
    thread.join()
    client = await worker.endpoint("ns.backend.load_metrics").client()
    (figures,) = [item async for item in await client.random(None, annotated=False)]
    assert figures == {
        "worker_id": worker.instance_id,
        "ranks": [{"dp_rank": 0, "kv_used_blocks": 1}, {"dp_rank": 1, "active_decode_blocks": 2, "kv_used_blocks": 3}],
    }


async def test_publishing_before_there_is_an_endpoint_says_what_to_do(worker: DistributedRuntime) -> None:
    out = WorkerMetricsPublisher()
    with pytest.raises(RuntimeError, match="create_endpoint"):
        out.publish(0, 1)
    await out.create_endpoint(worker.namespace("ns").component("backend"))
    with pytest.raises(RuntimeError, match="already"):
        await out.create_endpoint(worker.endpoint("ns.backend.generate"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0,), "at least one"),
        ((-1, 1), "dp_rank"),
        ((0, -1), "active_decode_blocks"),
        ((0, None, 1.5), "kv_used_blocks"),
        ((0, True), "active_decode_blocks"),
    ],
)
async def test_wrong_figures_are_refused_by_name(
    worker: DistributedRuntime, arguments: tuple[Any, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        (await publisher(worker)).publish(*arguments)
