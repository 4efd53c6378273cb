"""Prefill and decode workers as processes: requests are split, and no death of a prefill worker reaches a client."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp
import pytest

from chaos.fleet import PROXIED_MOCKER
from chaos.proxy import FaultProxy
from dynamo.runtime import DistributedRuntime
from support.services import free_port
from support.stack import Frontend, Process, Stack
from support.waiting import until

PROMPT = "the quick brown fox jumps over the lazy dog " * 8
ALWAYS = ("--router-conditional-disagg-config", '{"policy": "always"}')


FLAGS = (
    "--model-path", "tiny", "--model-name", "m", "--block-size", "16", "--speedup-ratio", "20", "--disaggregation-mode",
)  # fmt: skip


async def mocker(stack: Stack, mode: str) -> tuple[Process, int]:
    process = await stack.python("-m", "dynamo.mocker", *FLAGS, mode)
    line = await process.line("serves 'm'")
    return process, int(line.split("mocker ")[1].split()[0], 16)


async def ask(frontend: Frontend, text: str) -> tuple[dict[str, Any], str]:
    """The notes on the prefill, and the answer."""
    body = {
        "model": "m", "prompt": f"{text} {PROMPT}", "max_tokens": 8, "temperature": 0,
        "nvext": {"extra_fields": ["routing", "worker_id"]},
    }  # fmt: skip
    async with aiohttp.ClientSession() as http, http.post(f"{frontend.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        told = await answer.json()
    assert told["usage"]["completion_tokens"] == 8
    return told["nvext"]["routing"][0]["prefill"], told["choices"][0]["text"]


async def counted(url: str, name: str, label: str) -> float:
    """The sum of a metric over the series that have this label."""
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{") and label in line)


async def handoff_metric(port: int, name: str, label: str) -> float:
    """A hand-off metric of the worker with this status port."""
    return await counted(f"http://127.0.0.1:{port}/metrics", f"dynamo_component_handoff_{name}", f'"{label}"')


@pytest.mark.parametrize("network", ["nats"])
async def test_requests_are_split_until_the_prefill_worker_is_killed_and_again_when_one_returns(
    stack: Stack, network: str
) -> None:
    prefill, one = await mocker(stack, "prefill")
    await mocker(stack, "decode")
    frontend = await stack.frontend(*ALWAYS)
    await frontend.until_models("m")

    async def split(worker: int) -> bool:
        return (await ask(frontend, "hello"))[0]["worker_id"] == worker

    await until(lambda: split(one))
    asked = [asyncio.create_task(ask(frontend, f"number {number}")) for number in range(20)]
    prefill.signal(signal.SIGKILL)
    answers = await asyncio.gather(*asked)
    assert len({text for _, text in answers}) == 20

    async def local() -> bool:
        return (await ask(frontend, "again"))[0]["reason"] in ("no_prefill", "failed")

    await until(local)
    _, two = await mocker(stack, "prefill")
    await until(lambda: split(two))


async def test_a_router_process_splits_until_the_prefill_worker_is_killed(
    stack: Stack, here: DistributedRuntime
) -> None:
    prefill, _ = await mocker(stack, "prefill")
    port = free_port()
    decode = await stack.python("-m", "dynamo.mocker", *FLAGS, "decode", DYN_SYSTEM_PORT=str(port))
    await decode.line("serves 'm'")
    router = await stack.python("-m", "dynamo.router", "--endpoint", "dynamo.decode.generate", *ALWAYS)
    await router.line("serves dyn://dynamo.router")
    client = await here.endpoint("dynamo.router.generate").client()
    await client.wait_for_instances()

    async def split(first: int) -> bool:
        """Whether a decode worker took a prompt that was computed elsewhere, for an answer that is complete."""
        before = await handoff_metric(port, "takes_total", "taken")
        request = {"token_ids": [first, *range(100, 200)], "stop_conditions": {"max_tokens": 8, "ignore_eos": True}}
        answer = [item async for item in await client.random(request, annotated=False)]
        assert sum(len(item["token_ids"]) for item in answer) == 8
        assert answer[-1]["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        return await handoff_metric(port, "takes_total", "taken") > before

    prompts = iter(range(1, 100))
    await until(lambda: split(next(prompts)))
    asked = [asyncio.create_task(split(next(prompts))) for _ in range(8)]
    prefill.signal(signal.SIGKILL)
    await asyncio.gather(*asked)

    async def local() -> bool:
        return not await split(next(prompts))

    await until(local)


class Offering:
    """A prefill worker behind a proxy, a decode worker and a frontend, and requests that stop at their offer."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._ports = {"prefill": free_port(), "decode": free_port()}
        self.proxy = FaultProxy(free_port())
        self.prefill: Process
        self._decode: Process
        self._frontend: Frontend

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        self._decode = await self._stack.python(
            "-m", "dynamo.mocker", *FLAGS, "decode", DYN_SYSTEM_PORT=str(self._ports["decode"])
        )
        await self._decode.line("serves 'm'")
        self._frontend = await self._stack.frontend(*ALWAYS, "--migration-limit", "3")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.__aexit__()

    async def start_prefill(self) -> None:
        self.prefill = await self._stack.python(
            PROXIED_MOCKER, f"127.0.0.1:{self.proxy.port}", *FLAGS, "prefill",
            DYN_TCP_RPC_PORT=str(self.proxy.worker_port), DYN_SYSTEM_PORT=str(self._ports["prefill"]),
        )  # fmt: skip
        await self._frontend.until_instances(2)
        await ask(self._frontend, "a stopped process can keep a connection, but not make one")

    @asynccontextmanager
    async def offered(self, text: str) -> AsyncIterator[None]:
        """A request whose prompt is offered and not taken inside the block; its answer must be complete."""
        before = await self.handed_over()
        self._decode.signal(signal.SIGSTOP)
        asked = asyncio.create_task(ask(self._frontend, text))
        try:
            # The worker's record opens before its offer leaves; the frontend counts the offer when it has it.
            await until(lambda: self.offer_arrived(before))
            yield
        finally:
            self._decode.signal(signal.SIGCONT)
        notes, _ = await asked
        assert notes["remote"]

    async def handed_over(self) -> float:
        """Requests that the frontend has sent on to the decode worker with the offer of the prefill worker."""
        return await counted(
            f"{self._frontend.url}/metrics", "dynamo_component_router_disagg_decisions_total", 'prefill="remote"'
        )

    async def offer_arrived(self, before: float) -> bool:
        return await self.handed_over() > before

    async def metric(self, mode: str, name: str, label: str = "m") -> float:
        return await handoff_metric(self._ports[mode], name, label)

    async def until_metric(self, mode: str, name: str, value: float, label: str = "m") -> None:
        async def reached() -> bool:
            return await self.metric(mode, name, label) == value

        await until(reached)

    async def until_prefill_left(self) -> None:
        await self._frontend.until_instances(1)

    async def until_nothing_is_held(self) -> None:
        async with aiohttp.ClientSession() as http:

            async def cleared() -> bool:
                async with http.post(f"{self._frontend.url}/clear_kv_blocks") as answer:
                    found = await answer.json()
                return len(found["cleared_workers"]) == 2 and not found["failed_workers"]

            await until(cleared)
        for name in ("open_records", "held_blocks", "leaked_blocks"):
            await self.until_metric("prefill", name, 0)


async def test_an_offer_outlives_no_connection_a_drain_waits_for_it_and_a_kill_loses_no_request(stack: Stack) -> None:
    async with Offering(stack) as here:
        await here.start_prefill()
        async with here.offered("the connection breaks"):
            here.proxy.reset()
            await until(lambda: here.metric("prefill", "records_total", "given_back"))
        await until(lambda: here.metric("decode", "takes_total", "failed"))
        await here.until_nothing_is_held()
        async with here.offered("the worker is drained"):
            here.prefill.signal(signal.SIGTERM)
            await here.until_prefill_left()
        assert await here.metric("decode", "takes_total", "failed") == 1
        assert await here.prefill.ended() == 0
        await here.start_prefill()
        async with here.offered("the worker is killed"):
            here.prefill.signal(signal.SIGKILL)
            await here.prefill.ended()
        await here.until_metric("decode", "takes_total", 2, "failed")
        await here.start_prefill()
        await here.until_nothing_is_held()
