"""Actors: ai-dynamo's keys in a real etcd, and processes of a supervisor."""

from __future__ import annotations

import asyncio
import io
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.planner.act import LocalActor, PlannerDecision, VirtualActor, VirtualConnector, VirtualConnectorClient
from dynamo.planner.config import PlannerConfig, PlannerConfigError
from dynamo.planner.parts import ActorError, PoolOrder
from dynamo.process.supervisor.output import PrefixedOutput
from dynamo.runtime.discovery.etcd.config import EtcdConfig
from dynamo.supervisor import ComponentSpec, Deployment, ProcessState, Supervisor
from support.services import Etcd
from support.waiting import until

VIRTUAL = PlannerConfig(environment="virtual", mode="disagg")
SERVES = "trap 'exit 0' TERM; while :; do sleep 0.02; done"


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def connector(shared_etcd: Etcd, namespace: str) -> AsyncIterator[VirtualConnector]:
    async with VirtualConnector(EtcdConfig(endpoints=(shared_etcd.url,)), namespace) as made:
        yield made


async def test_a_decision_travels_through_etcd_and_is_confirmed(
    connector: VirtualConnector, shared_etcd: Etcd, namespace: str
) -> None:
    actor = VirtualActor(connector, VIRTUAL)
    assert await actor.read() == {"prefill": PoolOrder(wanted=None), "decode": PoolOrder(wanted=None)}
    await actor.scale({"prefill": 2, "decode": 5})
    assert (await actor.read())["decode"] == PoolOrder(wanted=5, in_progress=True)
    async with VirtualConnectorClient(EtcdConfig(endpoints=(shared_etcd.url,)), namespace) as client:
        decision = await client.wait()
        assert decision == PlannerDecision(num_prefill_workers=2, num_decode_workers=5, decision_id=1)
        await client.complete(decision)
        assert (await actor.read())["decode"] == PoolOrder(wanted=5)
        await actor.scale({"prefill": 2, "decode": 6})
        assert (await client.wait()).decision_id == 2


async def test_a_number_that_someone_else_wrote_is_read(connector: VirtualConnector) -> None:
    actor = VirtualActor(connector, VIRTUAL)
    await actor.scale({"prefill": 1, "decode": 1})
    await connector.put({"num_decode_workers": 7, "scaled_decision_id": 1})
    assert (await actor.read())["decode"] == PoolOrder(wanted=7)


async def test_the_keys_are_those_of_ai_dynamo(connector: VirtualConnector, namespace: str) -> None:
    await VirtualActor(connector, VIRTUAL).scale({"prefill": 1, "decode": 2})
    assert await connector.values() == {"num_prefill_workers": 1, "num_decode_workers": 2, "decision_id": 1}
    assert connector.root == f"v1/{namespace}/planner/"


async def test_an_etcd_that_does_not_answer_is_an_actor_error(etcd: Etcd, namespace: str) -> None:
    async with VirtualConnector(EtcdConfig(endpoints=(etcd.url,)), namespace) as connector:
        actor = VirtualActor(connector, VIRTUAL)
        await actor.scale({"prefill": 1, "decode": 1})
        etcd.stop()
        with pytest.raises(ActorError, match="etcd at "):
            await actor.read()
        with pytest.raises(ActorError, match="etcd at "):
            await actor.scale({"prefill": 1, "decode": 2})
        etcd.start()
        assert (await actor.read())["decode"].wanted == 1


async def test_local_processes_are_started_and_drained() -> None:
    spec = ComponentSpec(name="worker", kind="command", words=("sh", "-c", SERVES))
    output = PrefixedOutput(io.StringIO(), colour=False)
    config = PlannerConfig(deployment="serve.yaml")
    async with Supervisor(Deployment(components=(spec,)), {"PATH": os.environ["PATH"]}, output) as supervisor:
        await supervisor.start_all()
        actor = LocalActor(supervisor, config)
        await actor.scale({"decode": 3})
        assert (await actor.read())["decode"].wanted == 3
        await supervisor.until_ready()
        assert (await actor.read())["decode"] == PoolOrder(wanted=3, starting=0)
        await actor.scale({"decode": 1})
        assert (await actor.read())["decode"].wanted == 1
        await actor.close()
        await until(lambda: len(supervisor.processes("worker")) == 1)
        with pytest.raises(PlannerConfigError, match=r"serve\.yaml: has no component 'prefill'; it has worker"):
            LocalActor(supervisor, PlannerConfig(deployment="serve.yaml", mode="disagg"))


async def test_closing_waits_for_the_workers_that_are_drained(tmp_path: Path) -> None:
    up, end = tmp_path / "up", tmp_path / "end"
    drains = f"trap 'until [ -e {end} ]; do sleep 0.02; done; exit 0' TERM; touch {up}-$$; while :; do sleep 0.02; done"
    spec = ComponentSpec(name="worker", kind="command", words=("sh", "-c", drains), replicas=2)
    output = PrefixedOutput(io.StringIO(), colour=False)
    async with Supervisor(Deployment(components=(spec,)), {"PATH": os.environ["PATH"]}, output) as supervisor:
        await supervisor.start_all()
        await until(lambda: len(list(tmp_path.glob("up-*"))) == 2)
        leaving = supervisor.processes("worker")[1]
        actor = LocalActor(supervisor, PlannerConfig(deployment="serve.yaml"))
        await actor.scale({"decode": 1})
        closing = asyncio.create_task(actor.close())
        await until(lambda: leaving.state is ProcessState.Stopping)
        assert not closing.done()
        end.touch()
        await closing
        assert leaving.state is ProcessState.Stopped
