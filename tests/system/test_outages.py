"""etcd and NATS go away and come back; what could be served is served all the while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from support.services import Etcd, Nats
from support.stack import TOY, Frontend, Stack, ask, environ_of
from support.waiting import until


async def keep_asking(frontend: Frontend, answers: list[str], end: asyncio.Event) -> None:
    while not end.is_set():
        answers.append(await ask(frontend, "still there"))


async def in_store(etcd: Etcd, prefix: str) -> int:
    """How many records etcd itself holds."""
    from dynamo.runtime.discovery import EtcdConfig, EtcdDiscovery

    reader = EtcdDiscovery(EtcdConfig.from_env({"ETCD_ENDPOINTS": etcd.url}))
    await reader.start()
    try:
        return len(await reader.get_prefix(prefix))
    finally:
        await reader.close()


async def test_an_etcd_that_restarts_empty_loses_no_request(
    etcd: Etcd, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with Stack(tmp_path, environ_of("etcd", request)) as stack:
        workers = [await stack.python(TOY) for _ in range(2)]
        frontend = await stack.frontend()
        await frontend.until_instances(2)
        back, answers = asyncio.Event(), list[str]()
        asking = asyncio.create_task(keep_asking(frontend, answers, back))
        etcd.stop()
        for process in (*workers, frontend.process):
            await process.line("etcd")
        during = len(answers)
        await until(lambda: len(answers) >= during + 20)
        etcd.wipe()
        etcd.start()

        async def filled() -> bool:
            return await in_store(etcd, "v1/") >= 4

        await until(filled)
        late = await stack.frontend()
        await late.until_instances(2)
        back.set()
        await asking
        assert set(answers) == {"still there"}
        await frontend.until_instances(2)
        assert await ask(frontend, "after") == "after"
        assert all(worker.child.returncode is None for worker in workers)


async def test_the_tcp_plane_does_not_notice_a_nats_outage(
    nats: Nats, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    environ = {"NATS_SERVER": nats.url, "DYN_EVENT_PLANE": "nats"}
    async with Stack(tmp_path, environ) as stack:
        await stack.python(TOY)
        frontend = await stack.frontend()
        await frontend.until_models("toy")
        nats.stop()
        assert [await ask(frontend, "meanwhile") for _ in range(5)] == ["meanwhile"] * 5
        nats.start()
        assert await ask(frontend, "after") == "after"


async def test_the_nats_plane_refuses_during_an_outage_and_recovers(
    nats: Nats, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with Stack(tmp_path, environ_of("nats", request)) as stack:
        worker = await stack.python(TOY)
        frontend = await stack.frontend()
        await frontend.until_models("toy")
        assert await ask(frontend, "before") == "before"
        nats.stop()
        await frontend.process.line("lost NATS")
        with pytest.raises(openai.InternalServerError) as failure:
            await ask(frontend, "during")
        assert failure.value.status_code == 503
        nats.start()
        for process in (worker, frontend.process):
            await process.line(f"NATS at {nats.url} is back")
        assert await ask(frontend, "after") == "after"
