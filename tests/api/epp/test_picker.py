"""Which server the picker chooses, of stock servers that publish their caches and of those that do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dynamo.api.epp.endpoints import Endpoints, endpoint_of
from dynamo.api.epp.exchange import GatewayRequest
from dynamo.api.epp.metrics import picker_families
from dynamo.api.epp.picker import EndpointPicker
from dynamo.api.epp.stock import KvEventPorts, StockServers
from dynamo.kv.messages import WorkerRank
from dynamo.model import HubConfig
from dynamo.model.card import build_card
from dynamo.model.source import resolve
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import Unavailable
from dynamo.router.config import RoutingConfig
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.serving.models import Models
from support.kv_reader import FakeEngine
from support.waiting import until

ONE, TWO = "127.0.0.1:8001", "127.0.0.1:8002"
ESTIMATED = KvEventPorts()
LONG = "a long beginning that several requests share, " * 8


class Pool:
    def __init__(self, picker: EndpointPicker, stock: StockServers, endpoints: Endpoints, models: Models) -> None:
        self.picker, self.stock, self.endpoints, self.models = picker, stock, endpoints, models

    async def pick(self, body: bytes | None = None, *, path: str = "/v1/completions", **fields: Any) -> Any:
        subset = fields.pop("subset", None)
        if body is None and fields:
            body = json.dumps({"model": "m", "max_tokens": 4, **fields}).encode()
        return await self.picker.pick(GatewayRequest(id="r", method="POST", path=path, body=body, subset=subset))

    @property
    def router(self) -> KvAwareRouter:
        router = self.models.get("m").router
        assert isinstance(router, KvAwareRouter)
        return router


@asynccontextmanager
async def pool(*servers: str, ports: KvEventPorts = ESTIMATED) -> AsyncIterator[Pool]:
    hub = HubConfig(cache=Path("/nowhere"), offline=True)
    card = build_card(resolve("tiny", config=hub), name="m", model_type=ModelType.Backend)
    config, local, endpoints = RuntimeConfig.in_process({}), Local(), Endpoints()
    routing = RoutingConfig(mode="kv", use_kv_events=bool(ports.events), copy_prefixes=False)
    async with DistributedRuntime(config=config, local=local) as runtime:
        stock = StockServers(card, ports, config, local, endpoints)
        stock.start()
        stock.follow(servers)
        await stock.settle()
        models = Models(runtime, routing, hub)
        await models.start()
        try:
            yield Pool(EndpointPicker(models, endpoints, names_workers=False), stock, endpoints, models)
        finally:
            await models.close()
            await stock.close()


async def test_a_shared_beginning_stays_at_one_server_and_load_spreads_the_rest() -> None:
    async with pool(ONE, TWO) as made:
        first = await made.pick(prompt=LONG)
        other = await made.pick(prompt="something else entirely " * 8)
        assert {first.endpoint, other.endpoint} == {ONE, TWO}
        for pick in (first, other):
            pick.first_output()
            pick.release()
        for turn in range(5):
            again = await made.pick(prompt=f"{LONG} turn {turn}")
            assert again.endpoint == first.endpoint
            again.release()
        assert made.picker.counts.by_tokens == 7
        assert not made.endpoints.in_flight
        assert made.router.active == 0


async def test_a_chat_is_chosen_by_its_template() -> None:
    async with pool(ONE, TWO) as made:
        messages = [{"role": "user", "content": LONG}]
        first = await made.pick(path="/v1/chat/completions?x=1", messages=messages)
        first.release()
        more = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and then?"}]
        again = await made.pick(path="/v1/chat/completions", messages=more)
        assert (again.endpoint, made.picker.counts.by_tokens) == (first.endpoint, 2)
        again.release()


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"model": "another", "prompt": "x"}',
        b'{"model": "m", "prompt": 7}',
        b'{"model": "m"}',
        b'{"model": "m", "prompt": [[99999999]]}',
    ],
)
async def test_what_cannot_be_read_goes_where_the_load_is_least(body: bytes | None) -> None:
    async with pool(ONE, TWO) as made:
        picks = [await made.pick(body) for _ in range(4)]
        assert {pick.endpoint for pick in picks} == {ONE, TWO}
        assert made.picker.counts.by_load == 4
        for pick in picks:
            pick.release()


async def test_only_allowed_servers_are_chosen() -> None:
    async with pool(ONE, TWO) as made:
        for subset in (frozenset({ONE}), frozenset({TWO, "10.0.0.9:1"})):
            for prompt in (LONG, None):
                pick = await made.pick(subset=subset, prompt=prompt)
                assert pick.endpoint in subset
                pick.release()
        with pytest.raises(Unavailable, match="among those that the gateway allows"):
            await made.pick(prompt=LONG, subset=frozenset({"10.0.0.9:1"}))
        assert made.picker.counts.refused == 1


async def test_servers_come_and_go() -> None:
    async with pool(ONE) as made:
        assert (await made.pick(prompt=LONG)).endpoint == ONE
        made.stock.follow([TWO])
        assert (await made.pick()).endpoint == TWO  # at once
        await until(lambda: list(made.endpoints.workers.values()) == [TWO])
        assert (await made.pick(prompt=LONG)).endpoint == TWO
        made.stock.follow([])
        with pytest.raises(Unavailable, match="No server of this pool is ready"):
            await made.pick(prompt=LONG)


async def test_a_server_that_fails_several_times_is_passed_over() -> None:
    async with pool(ONE, TWO) as made:
        failing = (await made.pick(prompt=LONG)).endpoint
        for _ in range(5):
            pick = await made.pick(prompt=LONG, subset=frozenset({failing}))
            pick.answered(failed=True)
            pick.release()
        pick = await made.pick(prompt=LONG)
        assert pick.endpoint != failing
        pick.answered(failed=False)


async def test_what_an_engine_publishes_decides() -> None:
    """Over ZMQ, as vLLM does it; the events of a server come from its own address."""
    engine = FakeEngine(block_size=16)
    port = int(engine.address.rpartition(":")[2])
    try:
        # Nobody publishes at the address of the other.
        async with pool("127.0.0.9:8002", ONE, ports=KvEventPorts(port)) as made:
            await engine.heard()
            await until(lambda: made.router.follower and made.router.follower.live)
            tokenizer = made.models.get("m").tokenizing().model.tokenizer
            [worker] = [id for id, endpoint in made.endpoints.workers.items() if endpoint == ONE]
            await engine.say(engine.stored([1, 2, 3, 4], (await tokenizer.encode_async(LONG))[:64]))
            await until(lambda: made.router.index.blocks(WorkerRank(worker)) == 4)
            for _ in range(3):
                pick = await made.pick(prompt=LONG)
                assert pick.endpoint == ONE
                pick.first_output()
                pick.release()
    finally:
        await engine.close()


async def test_the_numbers_are_shown() -> None:
    async with pool(ONE, TWO) as made:
        await made.pick(prompt=LONG)
        found = picker_families(made.picker.counts, made.endpoints, made.models)
        values = {sample.name: sample.value for family in found for sample in family.samples}
        assert values["dynamo_epp_endpoints"] == 2
        assert values["dynamo_epp_requests_in_flight"] == 1
        assert values["dynamo_component_router_requests_total"] == 1


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("10.0.0.1", "10.0.0.1:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("[fd00::1]", "[fd00::1]:80"),
        ("pod-0.svc", "pod-0.svc:80"),
    ],
)
def test_an_endpoint_is_written_as_envoy_writes_it(host: str, endpoint: str) -> None:
    assert endpoint_of(host, 80) == endpoint
